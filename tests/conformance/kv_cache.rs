//! Caches of keys and values hold exactly what their format says, of drawn sizes.

use libtest_mimic::Failed;
use proptest::prelude::*;
use proptest::test_runner::TestCaseError;
use warpsmith::layers::CacheFormat;
use warpsmith::{DType, Device};
use warpsmith_lab::cases::{KeyScales, KvCacheCase};
use warpsmith_lab::validate;

use crate::{Case, cases, drawn};

pub(crate) const CASES: &[(&str, Case)] = cases![drawn_caches_hold_what_was_appended];

/// Types of new keys, and what is stored of them on every device.
pub(crate) const TYPES: [(DType, CacheFormat); 7] = [
    (DType::F16, CacheFormat::Same),
    (DType::F16, CacheFormat::F8E4M3),
    (DType::F16, CacheFormat::F8E5M2),
    (DType::Bf16, CacheFormat::Same),
    (DType::Bf16, CacheFormat::F8E4M3),
    (DType::Bf16, CacheFormat::F8E5M2),
    (DType::F32, CacheFormat::Same),
];

fn drawn_caches_hold_what_was_appended(device: &Device) -> Result<(), Failed> {
    let types = prop::sample::select(TYPES.to_vec());
    let width = || prop_oneof![1 => 1usize..20, 2 => (1usize..10).prop_map(|eighths| 8 * eighths)];
    let sizes = (0usize..4, 1usize..30, [0usize..20, 0usize..20], 1usize..4, [width(), width()]);
    let scales = prop::sample::select(vec![None, Some(KeyScales::OfTensor), Some(KeyScales::OfHeads)]);
    let options = (scales, any::<bool>(), prop::sample::select(vec![0usize, 3, 8]), any::<u64>());
    let all = (types, sizes, options).prop_map(
        |((dtype, format), (batch, capacity, tokens, key_heads, widths), (scales, on_device, gap, seed))| {
            // The host refuses what is beyond the capacity.
            let capacity = if on_device { capacity } else { capacity.max(tokens[0] + tokens[1]) };
            let scales = scales.filter(|_| format != CacheFormat::Same);
            let case = KvCacheCase::new(dtype, format, [batch, capacity], tokens, widths);
            KvCacheCase { key_heads, scales, on_device, gap, seed, ..case }
        },
    );
    let check = |case| {
        let outcome =
            validate::kv_cache(device, &case).map_err(|error| TestCaseError::fail(error.to_string()))?;
        prop_assert!(outcome.passed(), "{outcome:?}");
        Ok(())
    };
    Ok(drawn::runner(device, [60, 300])?.run(&all, check)?)
}
