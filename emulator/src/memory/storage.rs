//! The bytes of one allocation, with one bit for each that says whether it was ever written.
//!
//! Blocks run on several threads and a kernel under test may well race, so every access is a relaxed atomic one: plain
//! moves on the machines that matter, and no undefined behaviour of the emulator whatever the kernel does.

use std::alloc::{Layout, alloc_zeroed};
use std::sync::atomic::{AtomicU8, AtomicU16, AtomicU32, AtomicU64, Ordering::Relaxed};

#[cfg(target_endian = "big")]
compile_error!("the emulator's memory holds the GPU's little-endian bytes in place");

/// The bytes of one allocation and their initialisation bits.
pub(crate) struct Storage {
    words: Box<[AtomicU64]>,
    /// One byte for each word: bit i says that byte i of the word was written.
    written: Box<[AtomicU8]>,
    bytes: u64,
}

/// An integer that memory is read and written in.
pub(crate) trait Unit: Copy {
    /// The atomic type of the same size.
    type Atomic;
    fn load(cell: &Self::Atomic) -> Self;
    fn store(cell: &Self::Atomic, value: Self);
    /// Replaces the value by what `new` makes of it, at once; gives the value before.
    fn update(cell: &Self::Atomic, new: impl Fn(Self) -> Self) -> Self;
}

macro_rules! unit {
    ($($unit:ty, $atomic:ty;)*) => {$(
        impl Unit for $unit {
            type Atomic = $atomic;
            #[inline(always)]
            fn load(cell: &$atomic) -> $unit {
                cell.load(Relaxed)
            }
            #[inline(always)]
            fn store(cell: &$atomic, value: $unit) {
                cell.store(value, Relaxed);
            }
            fn update(cell: &$atomic, new: impl Fn(Self) -> Self) -> Self {
                let mut old = cell.load(Relaxed);
                while let Err(now) = cell.compare_exchange_weak(old, new(old), Relaxed, Relaxed) {
                    old = now;
                }
                old
            }
        }
    )*};
}
unit! { u8, AtomicU8; u16, AtomicU16; u32, AtomicU32; u64, AtomicU64; }

impl Storage {
    /// Storage of `bytes` bytes, none of them written; `None` if the host has no memory for it.
    pub(crate) fn new(bytes: u64) -> Option<Self> {
        // Two words more than needed, so that an access of 16 bytes at the last byte stays inside.
        let words = usize::try_from(bytes.div_ceil(8)).ok()?.checked_add(2)?;
        Some(Self { words: zeroed(words)?, written: zeroed(words)?, bytes })
    }

    /// The size in bytes.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    #[inline(always)]
    fn cell<T: Unit>(&self, offset: u64) -> &T::Atomic {
        let size = size_of::<T>();
        let end = self.words.len() * 8;
        assert!(
            offset as usize <= end - size && offset.is_multiple_of(size as u64),
            "access outside its storage or across a unit"
        );
        // SAFETY: the range lies inside `words` and is aligned to its size, both asserted above; an atomic integer has
        // no invalid values; and all accesses to the words go through atomics.
        unsafe { &*self.words.as_ptr().cast::<u8>().add(offset as usize).cast::<T::Atomic>() }
    }

    /// The unit at `offset`, which is aligned to the unit's size and inside.
    #[inline(always)]
    pub(crate) fn load<T: Unit>(&self, offset: u64) -> T {
        T::load(self.cell::<T>(offset))
    }

    /// The 16 bytes at `offset`, if that is a multiple of 8 and all of them are inside and were written.
    #[inline(always)]
    pub(crate) fn written_block(&self, offset: u64) -> Option<[u64; 2]> {
        let word = (offset / 8) as usize;
        let (words, written) = (self.words.get(word..word + 2)?, self.written.get(word..word + 2)?);
        let all = written[0].load(Relaxed) & written[1].load(Relaxed) == 0xff && offset.is_multiple_of(8);
        all.then(|| [words[0].load(Relaxed), words[1].load(Relaxed)])
    }

    /// The words from `offset` on, which is a multiple of 8 and inside.
    #[inline(always)]
    pub(crate) fn words_from(&self, offset: u64) -> impl Iterator<Item = u64> {
        self.words[(offset / 8) as usize..].iter().map(|word| word.load(Relaxed))
    }

    /// Whether all of the `count` bytes from `offset` are inside and were written.
    #[inline(always)]
    pub(crate) fn all_written(&self, offset: u64, count: u32) -> bool {
        let end = offset + u64::from(count);
        let Some(written) = self.written.get((offset / 8) as usize..end.div_ceil(8) as usize) else {
            return false;
        };
        let [first, last] = [0xff << (offset % 8), 0xff >> ((8 - end % 8) % 8)];
        match written {
            [] => true,
            [one] => one.load(Relaxed) & (first & last) as u8 == (first & last) as u8,
            [one, rest @ .., other] => {
                let ends = (one.load(Relaxed) | !(first as u8)) & (other.load(Relaxed) | !(last as u8));
                rest.iter().fold(ends, |all, word| all & word.load(Relaxed)) == 0xff
            }
        }
    }

    /// Stores words from `offset` on, a multiple of 8, and marks their bytes as written.
    #[inline(always)]
    pub(crate) fn store_words<'b>(&self, offset: u64, from: impl Iterator<Item = &'b [u8; 8]>) {
        let first = (offset / 8) as usize;
        for ((word, written), bytes) in self.words[first..].iter().zip(&self.written[first..]).zip(from) {
            word.store(u64::from_le_bytes(*bytes), Relaxed);
            if written.load(Relaxed) != 0xff {
                written.store(0xff, Relaxed);
            }
        }
    }

    /// Tells the processor that the bytes at `offset` will be read soon.
    #[inline(always)]
    pub(crate) fn prefetch(&self, offset: u64) {
        let word = (offset / 8) as usize;
        if let (Some(bytes), Some(written)) = (self.words.get(word), self.written.get(word)) {
            prefetch(bytes);
            prefetch(written);
        }
    }

    /// Stores the unit at `offset`, which is aligned to the unit's size and inside, and marks its bytes as written.
    #[inline(always)]
    pub(crate) fn store<T: Unit>(&self, offset: u64, value: T) {
        T::store(self.cell::<T>(offset), value);
    }

    /// Replaces the unit at `offset`, which is aligned to the unit's size and inside, by what `new` makes of it; gives the unit before.
    pub(crate) fn update<T: Unit>(&self, offset: u64, new: impl Fn(T) -> T) -> T {
        T::update(self.cell::<T>(offset), new)
    }

    /// Whether all of the `bytes` (at most 8, inside one word) from `offset` were written.
    #[inline(always)]
    pub(crate) fn is_written(&self, offset: u64, bytes: u32) -> bool {
        let mask = mask_of(offset, bytes);
        self.written[(offset / 8) as usize].load(Relaxed) & mask == mask
    }

    /// Sets whether the `bytes` (at most 8, inside one word) from `offset` are written.
    #[inline(always)]
    pub(crate) fn set_written(&self, offset: u64, bytes: u32, written: bool) {
        let mask = mask_of(offset, bytes);
        let cell = &self.written[(offset / 8) as usize];
        if written {
            let now = cell.load(Relaxed);
            if now & mask != mask {
                // Another block may set other bits of the same byte at the same time.
                if mask == 0xff {
                    cell.store(0xff, Relaxed);
                } else {
                    cell.fetch_or(mask, Relaxed);
                }
            }
        } else {
            cell.fetch_and(!mask, Relaxed);
        }
    }

    /// Copies bytes out.
    pub(crate) fn read(&self, offset: u64, into: &mut [u8]) {
        for_words(offset, into.len(), |at, range, whole| {
            if whole {
                into[range].copy_from_slice(&self.load::<u64>(at).to_le_bytes());
            } else {
                for (i, byte) in into[range].iter_mut().enumerate() {
                    *byte = self.load::<u8>(at + i as u64);
                }
            }
        });
    }

    /// Which bytes were written.
    pub(crate) fn read_written(&self, offset: u64, into: &mut [bool]) {
        for_words(offset, into.len(), |at, range, whole| {
            if whole && self.is_written(at, 8) {
                into[range].fill(true);
            } else {
                for (i, written) in into[range].iter_mut().enumerate() {
                    *written = self.is_written(at + i as u64, 1);
                }
            }
        });
    }

    /// Copies bytes in and marks them as written.
    pub(crate) fn write(&self, offset: u64, from: &[u8]) {
        for_words(offset, from.len(), |at, range, whole| {
            let length = range.len() as u32;
            let from = &from[range];
            if whole && let Ok(word) = <[u8; 8]>::try_from(from) {
                self.store::<u64>(at, u64::from_le_bytes(word));
            } else {
                for (i, &byte) in from.iter().enumerate() {
                    self.store::<u8>(at + i as u64, byte);
                }
            }
            self.set_written(at, length, true);
        });
    }

    /// Sets bytes to `byte` and marks them as written.
    pub(crate) fn fill(&self, offset: u64, byte: u8, length: u64) {
        for_words(offset, length as usize, |at, range, whole| {
            if whole {
                self.store::<u64>(at, u64::from_le_bytes([byte; 8]));
            } else {
                for i in 0..range.len() as u64 {
                    self.store::<u8>(at + i, byte);
                }
            }
            self.set_written(at, range.len() as u32, true);
        });
    }

    /// Copies bytes and their initialisation bits from another storage.
    pub(crate) fn copy_from(&self, offset: u64, source: &Self, source_offset: u64, length: u64) {
        let mut buffer = [0u8; 4096];
        let mut done = 0;
        while done < length {
            let now = (length - done).min(buffer.len() as u64);
            let part = &mut buffer[..now as usize];
            source.read(source_offset + done, part);
            self.write(offset + done, part);
            done += now;
        }
        let mut i = 0;
        while i < length {
            let aligned = (source_offset + i).is_multiple_of(8) && (offset + i).is_multiple_of(8);
            let step = if aligned && length - i >= 8 { 8 } else { 1 };
            if !source.is_written(source_offset + i, step) {
                for j in 0..u64::from(step) {
                    if !source.is_written(source_offset + i + j, 1) {
                        self.set_written(offset + i + j, 1, false);
                    }
                }
            }
            i += u64::from(step);
        }
    }
}

/// The initialisation bits, inside their word, of `bytes` bytes from `offset`.
#[inline(always)]
fn mask_of(offset: u64, bytes: u32) -> u8 {
    (((1u32 << bytes) - 1) as u8) << (offset % 8)
}

/// Cuts `length` bytes from `offset` at the borders of words; calls with the offset, the range of bytes counted from
/// the start, and whether it is a whole word.
fn for_words(offset: u64, length: usize, mut part: impl FnMut(u64, std::ops::Range<usize>, bool)) {
    let mut done = 0;
    while done < length {
        let at = offset + done as u64;
        let now = (8 - (at % 8) as usize).min(length - done);
        part(at, done..done + now, now == 8);
        done += now;
    }
}

#[inline(always)]
fn prefetch<T>(value: &T) {
    #[cfg(target_arch = "x86_64")]
    {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        // SAFETY: a hint that reads nothing; every x86-64 processor has it.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(std::ptr::from_ref(value).cast()) }
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = value;
}

/// A type of which all-zero bytes are a value.
///
/// # Safety
///
/// All-zero bytes must be a valid value, and the type must have no destructor.
unsafe trait Zeroable {}
// SAFETY: an atomic integer has the representation of the integer.
unsafe impl Zeroable for AtomicU64 {}
// SAFETY: as above.
unsafe impl Zeroable for AtomicU8 {}

/// A zeroed slice whose pages the system provides when they are first touched; `None` if there is no memory.
fn zeroed<T: Zeroable>(count: usize) -> Option<Box<[T]>> {
    if count == 0 {
        return Some(Box::new([]));
    }
    let layout = Layout::array::<T>(count).ok()?;
    // SAFETY: the layout is not empty, because `count` is not 0 and `T` is an integer.
    let pointer = unsafe { alloc_zeroed(layout) }.cast::<T>();
    if pointer.is_null() {
        return None;
    }
    // SAFETY: the memory was allocated with the layout of `[T; count]` by the global allocator, and all-zero bytes are
    // a valid `T`.
    Some(unsafe { Box::from_raw(std::ptr::slice_from_raw_parts_mut(pointer, count)) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_come_back_at_any_offset_and_only_they_are_written() {
        for offset in 0..9 {
            for length in 0..20 {
                let storage = Storage::new(40).unwrap();
                let data: Vec<u8> = (1..=length as u8).collect();
                storage.write(offset, &data);
                let mut back = vec![0; length];
                storage.read(offset, &mut back);
                assert_eq!(data, back);
                for i in 0..40 {
                    let inside = i >= offset && i < offset + length as u64;
                    for count in 0..=40 - i {
                        let all = i >= offset && i + count <= offset + length as u64 || count == 0;
                        assert_eq!(
                            storage.all_written(i, count as u32),
                            all,
                            "{offset}, {length}: {i}, {count}"
                        );
                    }
                    assert_eq!(
                        storage.is_written(i, 1),
                        inside,
                        "offset {offset}, length {length}, byte {i}"
                    );
                }
            }
        }
    }

    #[test]
    fn a_copy_carries_the_initialisation_bits() {
        let from = Storage::new(32).unwrap();
        from.write(3, &[1, 2, 3, 4, 5, 6, 7, 8, 9, 10]);
        for offset in 0..8 {
            let to = Storage::new(40).unwrap();
            to.fill(0, 0xff, 40);
            to.copy_from(offset, &from, 0, 32);
            for i in 0..32 {
                assert_eq!(to.is_written(offset + i, 1), (3..13).contains(&i), "byte {i} at {offset}");
            }
        }
    }
}
