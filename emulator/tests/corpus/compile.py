"""Compiles the CUDA sources of this folder to PTX with NVRTC, and the Triton kernels with Triton. Needs no GPU.

Usage: compile.py OUT. Writes OUT/NAME.sm_NN.ptx for each NAME.cu and each architecture, and OUT/NAME.triton.ptx for each
Triton kernel, and OUT/compiled.txt with the versions and the names of all files, last of all.

The packages are those that `cargo xtask corpus` names: nvidia-cuda-nvrtc, nvidia-cuda-runtime and nvidia-cuda-cccl, and
triton with what it imports.
"""

import ctypes
import pathlib
import sys
import sysconfig

HERE = pathlib.Path(__file__).resolve().parent
ARCHITECTURES = ["sm_75", "sm_80", "sm_90a"]
PACKAGES = pathlib.Path(sysconfig.get_paths()["purelib"]) / "nvidia"


class Nvrtc:
    """The few functions of NVRTC that compiling takes."""

    def __init__(self):
        libraries = sorted(PACKAGES.glob("**/libnvrtc.so.*"))
        if not libraries:
            sys.exit(f"no libnvrtc.so below {PACKAGES}: install nvidia-cuda-nvrtc")
        # NVRTC asks for its other library by name alone: it is found if it is loaded already.
        for builtins in PACKAGES.glob("**/libnvrtc-builtins.so.*"):
            ctypes.CDLL(str(builtins))
        self.library = ctypes.CDLL(str(libraries[0]))
        major, minor = ctypes.c_int(), ctypes.c_int()
        self.check(self.library.nvrtcVersion(ctypes.byref(major), ctypes.byref(minor)), "nvrtcVersion")
        self.version = f"{major.value}.{minor.value}"

    def check(self, code, what):
        if code != 0:
            self.library.nvrtcGetErrorString.restype = ctypes.c_char_p
            sys.exit(f"{what}: {self.library.nvrtcGetErrorString(code).decode()}")

    def compile(self, path, architecture):
        """The PTX of a file, or ends the program with the compiler's words."""
        options = [f"--gpu-architecture={architecture}", "--std=c++17", "--device-int128"]
        options += ["--device-as-default-execution-space"]
        options += [f"--include-path={folder}" for folder in includes()]
        program = ctypes.c_void_p()
        source = path.read_bytes()
        made = self.library.nvrtcCreateProgram(ctypes.byref(program), source, path.name.encode(), 0, None, None)
        self.check(made, "nvrtcCreateProgram")
        arguments = (ctypes.c_char_p * len(options))(*[option.encode() for option in options])
        if self.library.nvrtcCompileProgram(program, len(options), arguments) != 0:
            log = self.text(program, "nvrtcGetProgramLog")
            sys.exit(f"{path.name} for {architecture}:\n{log}")
        ptx = self.text(program, "nvrtcGetPTX")
        self.check(self.library.nvrtcDestroyProgram(ctypes.byref(program)), "nvrtcDestroyProgram")
        return ptx

    def text(self, program, function):
        size = ctypes.c_size_t()
        self.check(getattr(self.library, function + "Size")(program, ctypes.byref(size)), function)
        buffer = ctypes.create_string_buffer(size.value)
        self.check(getattr(self.library, function)(program, buffer), function)
        return buffer.value.decode()


def includes():
    """The folders with CUDA's headers, and with those of libcu++."""
    found = [header.parent for header in PACKAGES.glob("**/include/cuda_fp16.h")]
    found += [header.parent.parent.parent for header in PACKAGES.glob("**/include/**/cuda/std/atomic")]
    if not found:
        sys.exit(f"no cuda_fp16.h below {PACKAGES}: install nvidia-cuda-runtime and nvidia-cuda-cccl")
    return sorted({str(folder) for folder in found})


def first_architecture(path):
    """The architectures from the one that a first line `// from sm_NN` names on."""
    first = path.read_text().splitlines()[0]
    if first.startswith("// from "):
        return ARCHITECTURES[ARCHITECTURES.index(first.split()[2]) :]
    return ARCHITECTURES


def main():
    out = pathlib.Path(sys.argv[1])
    out.mkdir(parents=True, exist_ok=True)
    for old in [*out.glob("*.ptx"), *out.glob("compiled.txt")]:
        old.unlink()
    nvrtc = Nvrtc()
    names = []

    def write(name, ptx):
        (out / name).write_text(ptx)
        names.append(name)

    for path in sorted(HERE.glob("*.cu")):
        for architecture in first_architecture(path):
            write(f"{path.stem}.{architecture}.ptx", nvrtc.compile(path, architecture))
    import kernels_triton
    import kernels_triton_more

    for name, ptx in kernels_triton.compile_all(kernels_triton.KERNELS + kernels_triton_more.KERNELS):
        write(f"{name}.triton.ptx", ptx)
    lines = [f"nvrtc {nvrtc.version}", f"triton {kernels_triton.version()}", *names]
    (out / "compiled.txt").write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
