"""The recipes for CIFAR-10."""

import dataclasses
from typing import Any

from resnet.config.recipe import Recipe, RecipePhase
from resnet.config.schedules import Schedule

_DEVIATIONS = (
    "the rate of a step is that of the step before it in the source, so the first step"
    " changes nothing",
    "all training images count: the source drops the incomplete batch of each epoch",
)
_STUDY = "Dutta et al. 2019, arXiv:1911.08250: sands-lab/layer-wise-aaai20"
_STUDY_DEVIATIONS = (
    "the batch is 512 in all; in the source it is 512 on each of two or more ranks, and"
    " each of them reads the whole data set in an order of its own",
    *_DEVIATIONS,
)

RESNET9 = Recipe(
    name="cifar10_resnet9_24ep",
    source="davidcpage/cifar10-fast: ResNet9, 24 epochs",
    model="resnet9",
    image_size=32,
    global_batch_size=512,
    num_train_examples=50_000,
    num_classes=10,
    phases=(
        RecipePhase(
            epochs=24,
            schedule=Schedule(peak_value=0.4, warmup_length=5),
            momentum=0.9,
            weight_decay=5e-4,
            augmentation="pad_crop_flip_cutout",
        ),
    ),
    batch_norm_momentum=0.9,
    eval_crop_fraction=1.0,
    initialization="pytorch",
    decay_batch_norm=True,
    channel_mean=(0.4914, 0.4822, 0.4465),
    channel_stddev=(0.2471, 0.2435, 0.2616),
    published="top-1 94.08 % (median of 50 runs)",
    deviations=(
        "the velocity doesn't contain the learning rate, as in the source's first"
        " versions; in its last one it does",
        *_DEVIATIONS,
    ),
    rank_batch_size=512,
)

ALEXNET_BN = dataclasses.replace(
    RESNET9,
    name="cifar10_alexnet_bn_24ep",
    source=f"{_STUDY}, Alexnet",
    model="alexnet_bn",
    published="",
    deviations=(
        "momentum is 0.9 with Nesterov, as in cifar10-fast; the source has none by"
        " default",
        *_STUDY_DEVIATIONS,
    ),
)

ALEXNET = dataclasses.replace(
    ALEXNET_BN,
    name="cifar10_alexnet_24ep",
    source=f"{_STUDY}, Alexnet1",
    model="alexnet",
    # The source's default. With 0.9 it had not learned anything when the learning rate
    # became too high for it.
    phases=(dataclasses.replace(RESNET9.phases[0], momentum=0.0),),
    nesterov=False,
    deviations=_STUDY_DEVIATIONS,
    rank_batch_size=0,
)

# An alias of the recipe for ResNet-9, whose name this was.
CIFAR10 = dataclasses.replace(RESNET9, name="cifar10")

# The source's 476 steps of 1,024 images, whose bias of the first layer is trained in
# the first 144, in its three epochs of 48 full batches.
_EPOCHS_PER_STEP = 1024 / 50_000
# In the source, the rate is 11.5 for the sum of 1,024 losses and is divided by
# 1024 * (1 + 1 / (1 - momentum)), and the decay of a step is 0.0153 divided by the same
# factor of the momentum. Here the loss is the mean, and the rate multiplies the decay.
_NESTEROV_FACTOR = 1 + 1 / (1 - 0.85)
_PEAK_RATE = 11.5 / _NESTEROV_FACTOR  # 1.5
_BIAS_RATES = "/beta:64"
_WHITENING_BIAS = RecipePhase(
    name="whitening_bias",
    epochs=144 * _EPOCHS_PER_STEP,
    schedule=Schedule(
        init_value=0.2 * _PEAK_RATE,
        peak_value=_PEAK_RATE,
        warmup_length=109 * _EPOCHS_PER_STEP,  # 23 % of the steps.
        end_value=0.07 * _PEAK_RATE,
    ),
    momentum=0.85,
    weight_decay=0.0153 / 11.5,
    label_smoothing=0.2,
    augmentation="pad_crop_flip",
    shift_fraction=2 / 32,
    flips="alternating",
    layer_rates=_BIAS_RATES,
    layer_rates_scale_decay=False,
)

AIRBENCH94 = dataclasses.replace(
    RESNET9,
    name="cifar10_airbench94",
    source="Jordan 2024, arXiv:2404.00498: KellerJordan/cifar10-airbench,"
    " legacy/airbench94.py",
    model="airbench94",
    global_batch_size=1024,
    phases=(
        _WHITENING_BIAS,
        dataclasses.replace(
            _WHITENING_BIAS,
            name="frozen_whitening",
            epochs=332 * _EPOCHS_PER_STEP,
            schedule=None,
            layer_rates=f"{_BIAS_RATES},whitening:0",
        ),
    ),
    batch_norm_momentum=0.6,
    batch_norm_epsilon=1e-12,
    fixed_gamma=True,
    zero_last_gamma=False,
    initialization="dirac",
    channel_stddev=(0.2470, 0.2435, 0.2616),
    lookahead_every=5,
    lookahead_decay=0.95**5,
    lookahead_power=3.0,
    eval_views="flip_and_shift",
    published="top-1 94.01 % (mean of 1,000 runs, each image in six views)",
    deviations=(
        "the 476 steps are 9.75 epochs of all training images; in the source they are"
        " 9.9 epochs without the incomplete batch of each",
        "each step normalizes over a rank's images; in the source over all 1,024",
        "test-time augmentation takes the mean of probabilities, the source that of"
        " logits",
        "the first layer computes in float32, the others in float32 or bfloat16; in the"
        " source all but the normalizations compute in float16",
    ),
    rank_batch_size=1024,
)

# The batch, rates, momenta, decays and label smoothing of cifar10_speedrun.py. Rates
# here are for the mean of the losses, in the source for their sum. The source
# multiplies the outputs of the last layer by 1/256, this network by 1/9, so the rate of
# that layer is multiplied by (9/256)^2.
_MUON_BATCH = 1536
_MUON_RATE = 0.205
_MUON_BIAS = 0.0573 * _MUON_BATCH / _MUON_RATE
_MUON_HEAD = 0.5415 * _MUON_BATCH * (9 / 256) ** 2 / _MUON_RATE
_MUON_LAYER_RATES = f"/beta:{_MUON_BIAS:.5g},classifier:{_MUON_HEAD:.5g},whitening:"


def _muon_phases(
    peak_rate: float, epochs_at_24: float, epochs_at_32: float, **changes: Any
) -> tuple[RecipePhase, ...]:
    """Returns the phases of so many epochs with images of 24 and of 32 px.

    In 0.2 epochs before them, at 24 px, the bias of the whitening layer is trained too.
    """
    large = dataclasses.replace(
        _WHITENING_BIAS,
        name="large",
        epochs=epochs_at_32,
        schedule=None,
        momentum=0.825,
        weight_decay=1.0418e-6 * _MUON_BATCH / _MUON_RATE,
        layer_rates=f"{_MUON_LAYER_RATES}0",
        **changes,
    )
    small = dataclasses.replace(large, name="small", epochs=epochs_at_24, image_size=24)
    first = dataclasses.replace(
        small,
        name="whitening_bias",
        epochs=0.2,
        schedule=Schedule(peak_value=peak_rate),
        layer_rates=f"{_MUON_LAYER_RATES}{_MUON_BIAS:.5g}",
    )
    return first, small, large


CIFAR10_94 = dataclasses.replace(
    AIRBENCH94,
    name="cifar10_94",
    source="Jordan et al. 2024: KellerJordan/cifar10-airbench, airbench94_muon.py, with"
    " the settings of Hiverge 2025: hiverge/cifar10-speedrun, cifar10_speedrun.py",
    global_batch_size=_MUON_BATCH,
    phases=_muon_phases(_MUON_RATE, 3.6, 4.4, label_smoothing=0.09),
    optimizer="muon",
    muon_momentum=0.655,
    batch_norm_momentum=0.5566,
    lookahead_every=0,
    scaling="none",
    eval_views="flip_then_shift",
    published="top-1 94.01 % (mean of 200 runs, images in doubt in six views)",
    deviations=(
        "8.2 epochs, of which the first 3.8 have images of 24 px; in the source, 7.5 at"
        " 32 px, whose brightness and contrast are varied",
        "test images that two views leave in doubt are seen in six; in the source, the"
        " 20 % that one view leaves most in doubt",
        "the rate of the first layer's bias falls with the other rates; in the source,"
        " to 0 after 0.19 epochs",
        "Muon is that of airbench94_muon.py; in cifar10_speedrun.py, it has other"
        " coefficients, normalizes kernels in every eighth step, and decays them",
        "this bias begins with 0, and the weights of the last layer with a standard"
        " deviation of 0.036; in the source with up to 0.29, and exactly 9/256 (0.035)",
        "each step normalizes over a rank's images; in the source over all 1,536",
        "test-time augmentation takes the mean of probabilities, the source that of"
        " logits",
        "the first layer computes in float32, the others and the orthogonalization in"
        " float32 or bfloat16; in the source the orthogonalization in bfloat16, and all"
        " layers but the normalizations in float16",
    ),
    rank_batch_size=_MUON_BATCH,
)

CIFAR10_96 = dataclasses.replace(
    CIFAR10_94,
    name="cifar10_96",
    source="Jordan 2024, arXiv:2404.00498: KellerJordan/cifar10-airbench,"
    " legacy/airbench96.py, with the optimizer of cifar10_94",
    model="airbench96",
    phases=_muon_phases(
        _MUON_RATE * 9.0 / 11.5,  # The peaks of airbench96.py and airbench94.py.
        11.8,
        36,
        augmentation="pad_crop_flip_cutout",
        shift_fraction=4 / 32,
        cutout_fraction=12 / 32,
    ),
    published="top-1 96.03 % (mean of 400 runs, each image in six views)",
    deviations=(
        "48 epochs with Muon, of which the first 12 have images of 24 px; in the"
        " source, 37 at 32 px with Nesterov's momentum and Lookahead",
        "test images that two views leave in doubt are seen in six; in the source, all",
        "the batch is 1,536, and each step normalizes over a rank's images; in the"
        " source, over all 1,024",
        *AIRBENCH94.deviations[-2:],
    ),
)

RECIPES = (CIFAR10, RESNET9, ALEXNET_BN, ALEXNET, AIRBENCH94, CIFAR10_94, CIFAR10_96)
