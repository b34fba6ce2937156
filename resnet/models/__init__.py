"""Builds the networks by name. Keras and TensorFlow are imported when one is built."""

from typing import TYPE_CHECKING

from data_prep.errors import UserError
from resnet.models import names

if TYPE_CHECKING:
    import keras


def build(
    name: str,
    num_classes: int = 1000,
    image_size: int = 224,
    batch_norm_momentum: float = 0.95,
    compute_dtype: str = "float32",
    seed: int = 0,
    zero_last_gamma: bool = True,
    initialization: str = "variance_scaling",
    batch_norm_epsilon: float = 1e-5,
    fixed_gamma: bool = False,
    resnet_variant: str = "tpu",
    activation: str = "relu",
    se_ratio: float = 0.0,
    blur_pool: str = "none",
    initial_logit: float = 0.0,
) -> "keras.Model":
    """Returns a new Keras model from normalized float32 images to float32 logits.

    Its inputs are `[batch, height, width, 3]` with any height and width, those of
    "alexnet" and "mlp" with `image_size` only.

    Args:
        name: Name of the network, one of `names.MODELS`.
        num_classes: Number of logits.
        image_size: Height and width in pixels that `flops` counts the operations for,
            and the size of the images of "alexnet" and "mlp".
        batch_norm_momentum: Momentum of BatchNorm's moving averages, in [0, 1); 0.95 is
            that of the 24K recipe.
        compute_dtype: "float32" or "bfloat16"; variables are float32 in both cases.
        seed: Seed of the initial weights.
        zero_last_gamma: Whether gamma of the last normalization in each residual block
            is initialized to 0 instead of 1, so that the block starts as the identity.
            It matters to `names.MODELS_WITH_RESIDUAL_BLOCKS` only.
        initialization: Distribution of the initial weights, one of
            `names.INITIALIZATIONS`.
        batch_norm_epsilon: Constant that BatchNorm adds to the variance.
        fixed_gamma: Whether BatchNorm's gamma is the constant 1 and not a variable,
            which excludes `zero_last_gamma`.
        resnet_variant: The program whose details `names.RESNETS` have, one of
            `names.RESNET_VARIANTS`; other networks have one variant only.
        activation: The activation of `names.RESNETS_WITH_PARTS`, one of
            `names.ACTIVATIONS`.
        se_ratio: The ratio of squeeze-and-excitation of the same networks, at most 1; 0
            for none.
        blur_pool: The strided layers of the same networks that blur, one of
            `names.BLUR_POOLS`.
        initial_logit: What the biases of the last layer are initialized to; 0 leaves
            them as `initialization` says.

    Raises:
        UserError: If there is no network of that name.
        ValueError: If the last layer lacks the biases for an initial logit.
    """
    if name not in names.MODELS:
        raise UserError(
            f"expected a model among {', '.join(names.MODELS)}; got {name!r}"
        )
    import keras

    from resnet.models import (
        airbench,
        alexnet,
        cifar_resnet,
        inception,
        mlp,
        resnet,
        resnet9,
    )
    from resnet.models.initialization import initialize, initialize_last_bias

    batch_norm = {
        "batch_norm_momentum": batch_norm_momentum,
        "epsilon": batch_norm_epsilon,
        "fixed_gamma": fixed_gamma,
    }
    settings = (num_classes, image_size, batch_norm, compute_dtype, seed)
    others = {
        "resnet9": resnet9.build,
        "airbench94": airbench.build,
        "alexnet": alexnet.build,
        "alexnet_bn": alexnet.build_with_batch_norm,
        "inception_bn": inception.build,
        "inception_bn_28": inception.build_small,
        "mlp": mlp.build,
    }
    if name in others:
        model = others[name](*settings)
    else:
        depth = names.depth_of(name)
        if depth in names.CIFAR_RESNET_DEPTHS:
            model = cifar_resnet.build(depth, *settings, zero_last_gamma)
        else:
            model = resnet.build(
                *(depth, *settings, zero_last_gamma),
                is_resnet_d=name.endswith("d"),
                is_torchvision=resnet_variant == "torchvision",
                activation=activation,
                se_ratio=se_ratio,
                blurred=blur_pool,
            )
    initialize(model, initialization, seed)
    if initial_logit:
        initialize_last_bias(model, initial_logit)
    if name in ("alexnet", "mlp"):
        return model
    # Without this Keras refuses images of any size but `image_size`.
    model.input_spec = keras.InputSpec(shape=(None, None, None, 3))
    return model
