//! Digests of bytes, by which damage and differences are found.

/// A digest of 64 bits. It does not withstand who means to deceive.
pub(crate) fn digest(bytes: &[u8]) -> u64 {
    let mut digest = 0xcbf2_9ce4_8422_2325u64 ^ bytes.len() as u64;
    for word in bytes.chunks(8) {
        let mut whole = [0; 8];
        whole[..word.len()].copy_from_slice(word);
        // A bijection of the state for each word: one that differs is never forgotten.
        digest = (digest ^ u64::from_le_bytes(whole)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        digest ^= digest >> 29;
    }
    digest
}
