"""Makes the environment of a clone with Spack's Python, compiler and MPI."""

import os

from spack.package import depends_on, install_tree, version, which
from spack_repo.builtin.build_systems.generic import Package


class ResnetCpu(Package):
    """ResNet training on clusters of CPUs with TensorFlow and Horovod.

    The packages of Python come from PyPI, or from the folder WHEELS of `make wheels`.
    """

    homepage = "URL"  # The address of the repository.
    # Of `git archive --prefix=resnet-cpu-0.1.0/`, in the folder where Spack is called.
    manual_download = True
    url = f"file://{os.getcwd()}/resnet-cpu-0.1.0.tar.gz"

    version("0.1.0")

    depends_on("c", type="build")
    depends_on("cxx", type="build")
    depends_on("gmake", type="build")
    depends_on("mpi")
    depends_on("python@3.10:3.13", type=("build", "run"))

    def install(self, spec, prefix):
        """Makes the environment where it is used: its scripts name that place."""
        install_tree(".", prefix)
        which("make", required=True)(
            "-C",
            str(prefix),
            "venv",
            "SELF_CHECK=no",
            f"PYTHON={spec['python'].command.path}",
            f"MPICXX={spec['mpi'].mpicxx}",
        )

    def setup_run_environment(self, env):
        """Puts the environment first, whose mpirun is that of Spack's MPI."""
        env.prepend_path("PATH", os.path.join(self.prefix, ".venv", "bin"))
