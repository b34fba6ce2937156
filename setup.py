"""The installable package; `make venv` installs it in place (editable).

A wheel has compiled ops and Horovod within, so it fits one TensorFlow version and one
platform, but every Python. `make wheel` builds it in the environment that `make venv`
makes (install/wheel.sh).
"""

import importlib.util
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

from setuptools import Distribution, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_py import build_py

ROOT = Path(__file__).resolve().parent
VERSION_FILE = ROOT / "resnet" / "base" / "__init__.py"
# Of resnet/native; the key says for which TensorFlow the ops are.
LIBRARIES = ("libresnet_ops.so", "libresnet_ops.key", "libresnet_ports.so")
# What only --tfds_name needs: as an extra, since it brings 70 MB of packages.
TFDS = ("tensorflow-datasets", "importlib_resources")
# Folders of programs, which a wheel holds in the folder resnet_cpu. As packages they
# would replace others of these names in an environment (resnet/base/program.py).
PROGRAMS = ("eval", "launch")


def direct_requirements(file: str = "requirements.in") -> list[str]:
    """Returns the lines of a file of requirements, without comments."""
    text = Path(__file__).with_name(file).read_text(encoding="utf-8")
    lines = [line.split("#")[0].strip() for line in text.splitlines()]
    return [line for line in lines if line and not line.startswith(("-c", *TFDS))]


class BuildWithOps(build_py):
    """Builds the packages; for a wheel, with what is compiled and all programs."""

    def run(self) -> None:
        """Builds; without TensorFlow or a compiler, it prints an error and exits."""
        super().run()
        if self.editable_mode:
            return
        if importlib.util.find_spec("tensorflow") is None:
            sys.exit(
                "error: the compiled ops of resnet-cpu are built with TensorFlow, which"
                " this environment lacks. Run make wheel in a clone."
            )
        printed = ""
        for script in ("build_native.sh", "build_ports.sh", "build_horovod.sh"):
            words = ["bash", str(ROOT / "install" / script), sys.prefix]
            done = subprocess.run(words, stdout=subprocess.PIPE, text=True)
            if done.returncode:
                sys.exit("error: a library of resnet-cpu did not build (see above).")
            printed = done.stdout
        self._add_horovod(printed.splitlines()[-1])
        for name in LIBRARIES:
            library = Path("resnet", "native", name)
            shutil.copyfile(ROOT / library, Path(self.build_lib, library))
        for name in PROGRAMS:
            shutil.copytree(
                ROOT / name,
                Path(self.build_lib, "resnet_cpu", name),
                ignore=shutil.ignore_patterns("__pycache__", "jobs", "lab"),
                dirs_exist_ok=True,
            )

    def _add_horovod(self, wheel: str) -> None:
        """Adds the package and the licence from a wheel of Horovod."""
        with zipfile.ZipFile(wheel) as file:
            for name in file.namelist():
                if name.startswith("horovod/"):
                    file.extract(name, self.build_lib)
                elif name.endswith("/LICENSE"):
                    Path(self.build_lib, "horovod", "LICENSE").write_bytes(
                        file.read(name)
                    )


class ForEveryPython(bdist_wheel):
    """Names a wheel by its platform alone."""

    def get_tag(self) -> tuple[str, str, str]:
        """Returns the tags of Python, of its binary interface and of the platform."""
        return "py3", "none", super().get_tag()[2]


class WithCompiledOps(Distribution):
    """A distribution that contains compiled code, which setuptools can't see itself."""

    def has_ext_modules(self) -> bool:
        """Returns True, so that a wheel's name has the platform."""
        return True


setup(
    name="resnet-cpu",
    version=re.search('VERSION = "(.+)"', VERSION_FILE.read_text())[1],
    description="ResNet training on clusters of CPUs with TensorFlow and Horovod",
    long_description=Path(__file__).with_name("README.md").read_text(encoding="utf-8"),
    long_description_content_type="text/markdown",
    author="The resnet-cpu contributors",
    license="Apache-2.0",
    license_files=["LICENSE"],
    keywords=["ResNet", "ImageNet", "data-parallel training", "CPU", "Horovod", "MPI"],
    # The project itself has no public address yet.
    project_urls={
        "Paper of the recipes collapse_*": "https://arxiv.org/abs/1711.04291"
    },
    classifiers=[
        "Development Status :: 4 - Beta",
        "Environment :: Console",
        "Intended Audience :: Science/Research",
        "Operating System :: POSIX :: Linux",
        "Programming Language :: C++",
        "Programming Language :: Python :: 3 :: Only",
        *(f"Programming Language :: Python :: 3.{minor}" for minor in range(10, 14)),
        "Topic :: Scientific/Engineering :: Artificial Intelligence",
        "Topic :: Scientific/Engineering :: Image Recognition",
        "Topic :: System :: Distributed Computing",
        "Typing :: Typed",
    ],
    python_requires=">=3.10,<3.14",
    cmdclass={"build_py": BuildWithOps, "bdist_wheel": ForEveryPython},
    distclass=WithCompiledOps,
    packages=[
        "data_prep",
        "data_prep.conversion",
        "data_prep.images",
        "data_prep.records",
        "data_prep.sources",
        "resnet",
        "resnet.base",
        "resnet.checkpoint",
        "resnet.checkpoint.weight_formats",
        "resnet.config",
        "resnet.config.recipes",
        "resnet.data",
        "resnet.data.augmentation",
        "resnet.distributed",
        "resnet.evaluation",
        "resnet.exchange",
        "resnet.exchange.codecs",
        "resnet.export",
        "resnet.hardware",
        "resnet.metrics",
        "resnet.models",
        "resnet.models.layers",
        "resnet.native",
        "resnet.optim",
        "resnet.report",
        "resnet.runtime",
        "resnet.selftest",
        "resnet.training",
        "resnet.training.parameter_servers",
        "resnet.watchdog",
    ],
    package_data={
        "data_prep": ["py.typed"],
        "data_prep.sources": ["imagenet_labels.xz"],
        "resnet": ["py.typed"],
        "resnet.native": ["*.c", "*.cc", "*.h"],
        "resnet.report": ["*.css", "*.html", "*.js"],
    },
    install_requires=direct_requirements(),
    extras_require={
        "export": direct_requirements("requirements-export.in"),
        "parquet": direct_requirements("requirements-parquet.in"),
        "tfds": list(TFDS),
    },
    entry_points={
        "console_scripts": [
            "resnet-train = resnet.base.program:train",
            "resnet-eval = resnet.base.program:evaluate",
            "imagenet-to-tfrecords = resnet.base.program:convert",
            "resnet-export = resnet.base.program:export",
            "resnet-predict = resnet.base.program:predict",
            "resnet-report = resnet.base.program:report",
            "resnet-learning-curve = resnet.base.program:draw_learning_curve",
            "resnet-benchmark = resnet.base.program:benchmark",
            "resnet-digits = resnet.base.program:write_digits",
            "resnet-estimate = resnet.base.program:estimate",
            "resnet-parameter-server-job = resnet.base.program:parameter_server_job",
            "resnet-plan = resnet.base.program:plan",
            "resnet-place-shards = resnet.base.program:place_shards",
            "resnet-verify = resnet.base.program:verify",
            "resnet-selftest = resnet.base.program:self_test",
            "resnet-supervise = resnet.base.program:supervise",
        ]
    },
)
