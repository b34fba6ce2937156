import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from resnet.data.augmentation import seeds
from resnet.data.augmentation.seeds import seed_for

USES = [value for name, value in vars(seeds).items() if isinstance(value, int)]

keys = st.integers(0, 2**32 - 1)
numbers = st.integers(0, 2**40)


@settings(deadline=None)
@given(keys, keys, numbers, numbers, st.sampled_from(USES), st.sampled_from(USES))
def test_seeds_meet_only_for_the_same_example_and_use(
    key, other_key, number, other_number, use, other_use
):
    ours = seed_for(tf.constant([key, number], tf.int64), use)
    others = seed_for(tf.constant([other_key, other_number], tf.int64), other_use)
    is_same = (key, number, use) == (other_key, other_number, other_use)
    assert (ours.numpy().tolist() == others.numpy().tolist()) == is_same
