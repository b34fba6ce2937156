"""A ReFrame suite: what an installation promises, on the nodes where jobs will run.

    reframe -C SETTINGS.py -c tests/reframe/suite.py -r

It runs programs of this clone by the `python` that PATH, or a module of the site's
settings, leads to. docs/admins.md says what each test shows.
"""

import json
import shlex
from pathlib import Path

import reframe as rfm
import reframe.utility.sanity as sn
from reframe.core.builtins import (
    fixture,
    performance_function,
    run_before,
    sanity_function,
    variable,
)

# For the shell in which ReFrame runs the programs.
REPOSITORY = shlex.quote(str(Path(__file__).resolve().parents[2]))


class Job(rfm.RunOnlyRegressionTest):
    """A program of this clone on `num_tasks` ranks, all on one node unless -S says."""

    valid_systems = ["*"]
    valid_prog_environs = ["*"]
    sourcesdir = None
    executable = "python"
    time_limit = "30m"
    num_tasks = 2


@rfm.simple_test
class Start(Job):
    """The ranks start, reach each other, and get cores of their own."""

    executable_opts = [f"{REPOSITORY}/eval/launched_ranks.py"]

    @sanity_function
    def has_own_cores(self):
        text = sn.extractsingle(r'^.*"ranks".*$', self.stdout, 0)
        ranks = json.loads(sn.evaluate(text))["ranks"]
        places = [(rank["host"], cpu) for rank in ranks for cpu in rank["cpus"]]
        return sn.all(
            [
                sn.assert_eq(
                    [rank["rank"] for rank in ranks], [*range(self.num_tasks)]
                ),
                sn.assert_eq(len(set(places)), len(places), "ranks share cores"),
            ]
        )


@rfm.simple_test
class AllReduce(Job):
    """The gradients of ResNet-50 are averaged over the ranks; reports the bandwidth."""

    executable_opts = [f"{REPOSITORY}/eval/lab/exchange_cost.py", "--model=resnet50"]
    num_bytes = r"^messages +([\d,]+) bytes"

    @sanity_function
    def sends_every_gradient(self):
        gradients = sn.extractsingle(r"^gradients +([\d,]+) bytes", self.stdout, 1)
        return sn.assert_eq(sn.extractsingle(self.num_bytes, self.stdout, 1), gradients)

    @performance_function("MB/s")
    def gradients_per_second(self):
        text = sn.evaluate(sn.extractsingle(self.num_bytes, self.stdout, 1))
        seconds = sn.extractsingle(r"^time +(\S+) s", self.stdout, 1, float)
        return int(text.replace(",", "")) / 1e6 / seconds


class Steps(Job):
    """The first steps of the recipe `digits` in float32; keeps their weights."""

    weights = "weights.safetensors"
    flags = variable(str, value="")

    @run_before("run")
    def set_commands(self):
        python = f"python {REPOSITORY}"
        self.prerun_cmds = [
            f"{python}/data_prep/digits.py --digits_dir images",
            f"{python}/data_prep/imagenet_to_tfrecords.py --raw_data_dir images"
            " --local_scratch_dir records",
        ]
        self.executable_opts = [
            f"{REPOSITORY}/resnet/resnet_main.py --recipe=digits --precision=float32",
            "--data_dir=records --model_dir=model --stop_after_steps=3",
            f"--num_intra_threads=1 --num_inter_threads=1 {self.flags}",
        ]
        self.postrun_cmds = [
            f"{python}/eval/export.py --model_dir=model --format=safetensors"
            f" --nofold_batch_norm --out={self.weights}"
        ]

    def trained_weights(self) -> dict[str, bytes]:
        """Returns the trained tensors; BatchNorm's moving statistics aren't trained."""
        data = Path(self.stagedir, self.weights).read_bytes()
        begin = 8 + int.from_bytes(data[:8], "little")
        tensors = json.loads(data[8:begin])
        tensors.pop("__metadata__", None)
        places = {name: tensor["data_offsets"] for name, tensor in tensors.items()}
        return {
            name: data[begin + first : begin + last]
            for name, (first, last) in places.items()
            if "moving_" not in name
        }

    @sanity_function
    def has_trained(self):
        return sn.assert_found(r"Finished training up to step 3\b", self.stderr)


class OneRank(Steps):
    """The same batches on one rank, as two micro-batches a step."""

    num_tasks = 1
    flags = "--accumulation_steps=2"


@rfm.simple_test
class SameBits(Steps):
    """Two ranks get the weights of one rank, bit for bit: each sum is exact."""

    one_rank = fixture(OneRank, scope="environment")

    @sanity_function
    def has_equal_weights(self):
        weights, expected = self.trained_weights(), self.one_rank.trained_weights()
        different = {name for name in expected if weights.get(name) != expected[name]}
        return sn.all(
            [
                sn.assert_gt(len(expected), 0),
                sn.assert_false(different, f"other bits than one rank's: {different}"),
            ]
        )


@rfm.simple_test
class StepSpeed(Job):
    """A training step is as fast as the site's own figure says, within its band.

    The figure is measured on a good node first, and then stands in the `extras` of the
    partition: `{"images_per_second": 310, "band": 0.1}`. Without it, none is compared.
    """

    flags = variable(str, value="--batch_size=32 --precision=bf16 --steps=16")

    @run_before("run")
    def set_flags(self):
        program = f"{REPOSITORY}/eval/benchmark.py"
        self.executable_opts = [program, "--json", self.flags]

    @run_before("performance")
    def set_reference(self):
        extras = self.current_partition.extras
        if speed := extras.get("images_per_second"):
            band = extras.get("band", 0.1)
            limits = (speed, -band, band, "images/s")
            self.reference = {"*": {"images_per_second": limits}}

    def measured(self) -> float:
        line = sn.extractsingle(r'^.*"images_per_second".*$', self.stdout, 0)
        return json.loads(sn.evaluate(line))["images_per_second"]

    @sanity_function
    def has_measured(self):
        return sn.assert_gt(self.measured(), 0)

    @performance_function("images/s")
    def images_per_second(self):
        return self.measured()
