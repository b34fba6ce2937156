"""The codecs of compressed gradients.

Nothing here knows Horovod or MPI: a codec turns a vector of this rank into a message of
bytes, or into tensors whose means over ranks it asks for (`codec.Context.mean`).
"""

from collections.abc import Mapping

from resnet.exchange.codecs import dgc, quantized, sparse, summed
from resnet.exchange.codecs.codec import Codec

# What else there is to know of a method is in `resnet.config.compression.METHODS`.
CODECS: Mapping[str, Codec] = {
    "randomk": Codec(average=summed.average_coordinates),
    "topk": Codec(encode=sparse.encode_topk),
    "thresholdv": Codec(encode=sparse.encode_above_threshold),
    "adaptivethreshold": Codec(encode=sparse.encode_above_half),
    "terngrad": Codec(encode=quantized.encode_ternary, alignment=lambda *_: 5),
    "qsgd": Codec(encode=quantized.encode_qsgd, alignment=quantized.qsgd_alignment),
    "fp16": Codec(encode=quantized.encode_fp16),
    "bf16": Codec(encode=quantized.encode_bf16),
    "powersgd": Codec(average=summed.average_matrices, state=summed.first_matrix),
    "dgc": Codec(encode=sparse.encode_topk, memory=dgc.Velocities),
}
