import tensorflow as tf

from data_prep.records import schema


def test_shard_names_are_those_of_the_tpu_scripts():
    assert schema.shard_name("train", 7, 1024) == "train-00007-of-01024"
    name = schema.shard_name("validation", 127, 128)
    assert name == "validation-00127-of-00128"


def test_an_example_has_the_features_of_the_tpu_scripts():
    serialized = schema.image_example(
        b"jpeg", height=3, width=300, label=1000, class_name="n15", filename="x.JPEG"
    )
    expected = tf.train.Example()
    feature = expected.features.feature
    feature["image/encoded"].bytes_list.value.append(b"jpeg")
    feature["image/height"].int64_list.value.append(3)
    feature["image/width"].int64_list.value.append(300)
    feature["image/channels"].int64_list.value.append(3)
    feature["image/colorspace"].bytes_list.value.append(b"RGB")
    feature["image/format"].bytes_list.value.append(b"JPEG")
    feature["image/filename"].bytes_list.value.append(b"x.JPEG")
    feature["image/class/label"].int64_list.value.append(1000)
    feature["image/class/synset"].bytes_list.value.append(b"n15")
    assert tf.train.Example.FromString(serialized) == expected
    assert serialized == expected.SerializeToString(deterministic=True)


def test_a_file_name_that_is_not_utf8_keeps_its_bytes():
    serialized = schema.image_example(
        b"", height=1, width=1, label=1, class_name="a", filename="\udcff.jpg"
    )
    example = tf.train.Example.FromString(serialized)
    assert example.features.feature["image/filename"].bytes_list.value == [b"\xff.jpg"]
