//! What the host and the device agree on: the types a kernel takes, and how a kernel is launched.
//!
//! `#[kernel]` writes one implementation of [`Kernel`] for every instance of a kernel. The device side takes its
//! arguments in the order and the layout that [`KernelArgs`] hands them over, so a launch needs no other description of
//! the entry point, and an argument of the wrong type does not compile.

use core::marker::PhantomData;

/// A pointer to elements in the GPU's global memory that a kernel only reads.
///
/// It is a 64-bit device address, whatever the host's pointer size is.
#[repr(transparent)]
pub struct Global<T>(u64, PhantomData<*const T>);

/// A pointer to elements in the GPU's global memory that a kernel writes.
#[repr(transparent)]
pub struct GlobalMut<T>(u64, PhantomData<*mut T>);

macro_rules! global_pointer {
    ($pointer:ident) => {
        impl<T> Clone for $pointer<T> {
            fn clone(&self) -> Self {
                *self
            }
        }
        impl<T> Copy for $pointer<T> {}

        impl<T> $pointer<T> {
            /// A pointer to the device address `address`; 0 stands for "no such operand".
            #[inline(always)]
            pub const fn new(address: u64) -> Self {
                Self(address, PhantomData)
            }

            /// The device address.
            #[inline(always)]
            pub const fn address(self) -> u64 {
                self.0
            }

            /// Whether this is the pointer that stands for "no such operand".
            #[inline(always)]
            pub const fn is_null(self) -> bool {
                self.0 == 0
            }

            /// The pointer `count` elements further on.
            #[inline(always)]
            pub const fn offset(self, count: u64) -> Self {
                Self::new(self.0 + count * size_of::<T>() as u64)
            }
        }
    };
}
global_pointer!(Global);
global_pointer!(GlobalMut);

/// A type that a kernel takes by value, with the same layout on the host and on the device.
///
/// Derive it for a `#[repr(C)]` struct of such types.
///
/// # Safety
///
/// The type has the same size, alignment and field order for the host and for `nvptx64`, has no padding bytes, and any
/// value of it may be copied byte by byte.
pub unsafe trait KernelParam: Copy + 'static {
    /// The alignment in bytes of the parameter, which the PTX states. It may exceed the type's own.
    const PARAM_ALIGN: usize = align_of::<Self>();
}

macro_rules! kernel_param {
    ($($scalar:ty),*) => {
        $(
            // SAFETY: a primitive number has no padding and one layout on every 64-bit target.
            unsafe impl KernelParam for $scalar {}
        )*
    };
}
kernel_param!(u8, i8, u16, i16, u32, i32, u64, i64, f32, f64);

// SAFETY: transparent over a `u64`.
unsafe impl<T: 'static> KernelParam for Global<T> {}
// SAFETY: transparent over a `u64`.
unsafe impl<T: 'static> KernelParam for GlobalMut<T> {}

/// Describes a tensor in global memory to the copy engine (TMA): 128 opaque bytes, which the host encodes.
///
/// A kernel takes it by reference, `x: &TensorMap`: the launch passes its bytes by value, and the kernel gets the place in
/// the parameters where they stand, which is what the copy instructions ask for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C, align(16))]
pub struct TensorMap([u64; 16]);

impl TensorMap {
    /// Bytes of a tensor map.
    pub const BYTES: usize = 128;
    /// The alignment in bytes that the copy engine asks for.
    pub const ALIGN: usize = 64;

    /// The tensor map of these words, as the driver or the emulator has encoded it.
    #[must_use]
    pub const fn from_words(words: [u64; 16]) -> Self {
        Self(words)
    }

    /// The words.
    #[must_use]
    pub const fn words(&self) -> &[u64; 16] {
        &self.0
    }

    /// The generic address of this tensor map, for [`ptx`](crate::ptx).
    #[inline(always)]
    #[must_use]
    pub fn address(&self) -> u64 {
        (&raw const *self).addr() as u64
    }
}

// A larger alignment of the type would make the compiler copy the parameter to local memory.
// SAFETY: an array of `u64`, without padding.
unsafe impl KernelParam for TensorMap {
    const PARAM_ALIGN: usize = Self::ALIGN;
}

/// Size and alignment of one kernel parameter, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ParamLayout {
    /// Bytes that the parameter occupies.
    pub size: usize,
    /// Its alignment in bytes.
    pub align: usize,
}

/// One argument of a launch: where its bytes are, and how many.
#[derive(Clone, Copy, Debug)]
pub struct RawArg {
    /// The argument's first byte; valid for the duration of the call that hands it over.
    pub data: *const u8,
    /// Its length in bytes.
    pub size: usize,
}

/// The arguments of a kernel: a tuple of [`KernelParam`]s.
pub trait KernelArgs: Copy {
    /// The layout of each argument, in order.
    const LAYOUT: &'static [ParamLayout];

    /// Hands the arguments over as bytes, in order.
    fn with_raw<R>(&self, take: impl FnOnce(&[RawArg]) -> R) -> R;
}

macro_rules! kernel_args {
    ($($name:ident $index:tt),*) => {
        impl<$($name: KernelParam),*> KernelArgs for ($($name,)*) {
            const LAYOUT: &'static [ParamLayout] =
                &[$(ParamLayout { size: size_of::<$name>(), align: $name::PARAM_ALIGN }),*];

            fn with_raw<R>(&self, take: impl FnOnce(&[RawArg]) -> R) -> R {
                take(&[$(RawArg { data: (&raw const self.$index).cast(), size: size_of::<$name>() }),*])
            }
        }
    };
}
kernel_args!();
kernel_args!(A 0);
kernel_args!(A 0, B 1);
kernel_args!(A 0, B 1, C 2);
kernel_args!(A 0, B 1, C 2, D 3);
kernel_args!(A 0, B 1, C 2, D 3, E 4);
kernel_args!(A 0, B 1, C 2, D 3, E 4, F 5);
kernel_args!(A 0, B 1, C 2, D 3, E 4, F 5, G 6);
kernel_args!(A 0, B 1, C 2, D 3, E 4, F 5, G 6, H 7);
kernel_args!(A 0, B 1, C 2, D 3, E 4, F 5, G 6, H 7, I 8);
kernel_args!(A 0, B 1, C 2, D 3, E 4, F 5, G 6, H 7, I 8, J 9);
kernel_args!(A 0, B 1, C 2, D 3, E 4, F 5, G 6, H 7, I 8, J 9, K 10);
kernel_args!(A 0, B 1, C 2, D 3, E 4, F 5, G 6, H 7, I 8, J 9, K 10, L 11);

/// What a kernel declares about itself; a launch that does not fit it is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Declaration {
    /// The name of the entry point in the PTX.
    pub name: &'static str,
    /// The kernel family: the PTX file that holds the entry. Empty for a kernel whose module the program loads itself.
    pub family: &'static str,
    /// Threads a block along x, y, z: every launch uses exactly these.
    pub block: [u32; 3],
    /// Blocks of a cluster along x, y, z: every launch uses exactly these. `[1, 1, 1]` is a launch without clusters, unless it names a size
    /// itself.
    pub cluster: [u32; 3],
    /// Blocks that one multiprocessor must be able to hold at a time.
    pub min_blocks_per_sm: u32,
    /// Dynamic shared memory a block, in bytes.
    pub shared_bytes: u32,
    /// The parameters' names, in order.
    pub params: &'static [&'static str],
    /// A fingerprint of the function, if it is a safe one (of the attribute, the signature and the body) or another attribute has made it. The PTX has
    /// it as a comment, `// warpsmith.source 0x…`. A launch without `unsafe` compares the two: another function may have the name.
    pub source: Option<u64>,
}

/// One instance of a kernel: a type that carries everything a launch needs to know.
///
/// # Safety
///
/// The PTX entry `DECLARATION.name` takes exactly `Args`, in order. `#[kernel]` guarantees it by writing both from one
/// signature.
pub unsafe trait Kernel: 'static {
    /// The arguments, in order.
    type Args: KernelArgs;
    /// The entry's name, block size and resources.
    const DECLARATION: Declaration;
}

/// What the entry of a kernel hands to the safe function that it was made of, and nobody else has.
///
/// `#[kernel]` adds it to the function as its first parameter, which has no name. A kernel that calls another one as if it were a function has no argument
/// for it: there would be a part of a block, or another block than the function relies on.
#[derive(Debug)]
pub struct EntryToken(());

impl EntryToken {
    /// The token.
    ///
    /// # Safety
    ///
    /// It is handed to the function of a kernel, at once, by all threads of a launch. The block, the cluster and the shared memory are those that the kernel
    /// declares.
    #[inline(always)]
    #[must_use]
    pub const unsafe fn new() -> Self {
        Self(())
    }
}

/// A kernel that asks nothing of its launch but arguments that are what their types say. Each slice and matrix is
/// memory that no other work touches meanwhile. Two arguments may share memory only if both only read it.
///
/// It has the block, the cluster and the shared memory that it declares. It holds on every grid that the device takes, of one, two or three dimensions, and
/// for every value and size of its arguments: it traps, or does nothing, where they do not fit each other. So two of its threads touch an element only if
/// both read it, both use atomics, or a barrier orders them.
///
/// # Safety
///
/// As it says. `#[kernel]` implements it for functions that are not `unsafe`, whose bodies answer for it where they use `unsafe`.
pub unsafe trait SafeKernel: Kernel {}
