//! Whether a launch fits: the kernel's declaration, its PTX, and the device's limits. All pure, all before the driver.

use warpsmith_dsl::launch::{Declaration, ParamLayout};

use super::ptx::PtxEntry;
use crate::device::Properties;
use crate::device::backend::{FunctionResources, LaunchSize};
use crate::error::{Error, Result};

/// Refuses a launch that does not fit the entry or the device, and says what does not fit and by how much.
pub(crate) fn check_launch(
    entry: &PtxEntry,
    resources: &FunctionResources,
    properties: &Properties,
    size: LaunchSize,
    argument_sizes: impl ExactSizeIterator<Item = usize>,
) -> Result<()> {
    let refuse = |quantity: &'static str, expected: String, actual: String| {
        Err(Error::LaunchLimit { kernel: entry.name.clone(), quantity, expected, actual })
    };
    let LaunchSize { grid, block, cluster, dynamic_shared, cooperative, early: _, beside_last: _ } = size;

    if let Some(required) = entry.required_block
        && block != required
    {
        return refuse("the block", format!("{required:?}, as the kernel declares"), format!("{block:?}"));
    }
    if (0..3).any(|axis| block[axis] == 0 || block[axis] > properties.max_block[axis]) {
        let limits = properties.max_block;
        return refuse("the block", format!("at least 1 and at most {limits:?}"), format!("{block:?}"));
    }
    let threads: u64 = block.iter().map(|&length| u64::from(length)).product();
    let declared = entry.max_threads.unwrap_or(u32::MAX);
    for (limit, whose) in [
        (declared, "the kernel declares"),
        (resources.max_threads, "the kernel's registers allow"),
        (properties.max_threads_per_block, "the device allows"),
    ] {
        if threads > u64::from(limit) {
            return refuse(
                "the number of threads a block",
                format!("at most {limit}, which {whose}"),
                threads.to_string(),
            );
        }
    }
    if (0..3).any(|axis| grid[axis] == 0 || grid[axis] > properties.max_grid[axis]) {
        let limits = properties.max_grid;
        return refuse("the grid", format!("at least 1 and at most {limits:?}"), format!("{grid:?}"));
    }
    check_cluster(entry, properties, grid, cluster)?;
    let shared = u64::from(resources.static_shared) + u64::from(dynamic_shared);
    if shared > u64::from(properties.max_shared_per_block) {
        return refuse(
            "the shared memory a block",
            format!("at most {} bytes, which the device has", properties.max_shared_per_block),
            format!("{shared} bytes ({} static, {dynamic_shared} dynamic)", resources.static_shared),
        );
    }
    if cooperative {
        let of_shared = u64::from(properties.shared_per_multiprocessor)
            / (shared + u64::from(properties.reserved_shared_per_block)).max(1);
        let of_threads = u64::from(properties.max_threads_per_multiprocessor) / threads.max(1);
        let limit = of_shared.min(of_threads) * u64::from(properties.multiprocessors);
        let blocks: u128 = grid.iter().map(|&length| u128::from(length)).product();
        if blocks > u128::from(limit) {
            return refuse(
                "the grid of a cooperative launch",
                format!("at most {limit} blocks, which the device holds at the same time"),
                format!("{grid:?}"),
            );
        }
    }
    check_arguments(entry, properties, argument_sizes)
}

fn check_cluster(entry: &PtxEntry, properties: &Properties, grid: [u32; 3], cluster: [u32; 3]) -> Result<()> {
    let refuse = |expected: String| {
        let (kernel, actual) = (entry.name.clone(), format!("{cluster:?}"));
        Err(Error::LaunchLimit { kernel, quantity: "the cluster", expected, actual })
    };
    if let Some(required) = entry.required_cluster
        && cluster != required
    {
        return refuse(format!("{required:?}, as the kernel declares"));
    }
    if (0..3).any(|axis| cluster[axis] == 0 || !grid[axis].is_multiple_of(cluster[axis])) {
        return refuse(format!("a divisor of the grid {grid:?} along each axis"));
    }
    let blocks: u128 = cluster.iter().map(|&length| u128::from(length)).product();
    let declared = entry.max_cluster.map(|limit| (limit, "the kernel declares"));
    for (limit, whose) in declared.into_iter().chain([(properties.max_cluster, "the device allows")]) {
        if blocks > u128::from(limit) {
            return refuse(format!("at most {limit} blocks, which {whose}"));
        }
    }
    Ok(())
}

fn check_arguments(
    entry: &PtxEntry,
    properties: &Properties,
    argument_sizes: impl ExactSizeIterator<Item = usize>,
) -> Result<()> {
    let refuse = |quantity: &'static str, expected: String, actual: String| {
        Err(Error::LaunchLimit { kernel: entry.name.clone(), quantity, expected, actual })
    };
    if argument_sizes.len() != entry.params.len() {
        return refuse(
            "the number of arguments",
            entry.params.len().to_string(),
            argument_sizes.len().to_string(),
        );
    }
    for (index, (size, param)) in argument_sizes.zip(&entry.params).enumerate() {
        if size != param.size {
            return refuse(
                "the size of an argument",
                format!("{} bytes for argument {index}", param.size),
                format!("{size} bytes"),
            );
        }
    }
    let bytes = parameter_bytes(&entry.params);
    if bytes > properties.max_parameter_bytes as usize {
        return refuse(
            "the size of all arguments",
            format!("at most {} bytes", properties.max_parameter_bytes),
            format!("{bytes} bytes"),
        );
    }
    Ok(())
}

/// Bytes of the parameters as they are laid out one after the other.
fn parameter_bytes(params: &[ParamLayout]) -> usize {
    params.iter().fold(0usize, |end, param| {
        let start = end.checked_next_multiple_of(param.align.max(1)).unwrap_or(usize::MAX);
        start.saturating_add(param.size)
    })
}

/// Refuses an entry that is not what the kernel's type declares.
pub(crate) fn check_declaration(
    declaration: &Declaration,
    layout: &[ParamLayout],
    entry: &PtxEntry,
    resources: &FunctionResources,
) -> Result<()> {
    let refuse = |quantity: &'static str, expected: String, actual: String| {
        Err(Error::KernelMismatch { kernel: entry.name.clone(), quantity, expected, actual })
    };
    if entry.params.len() != layout.len() {
        return refuse("the number of parameters", layout.len().to_string(), entry.params.len().to_string());
    }
    for (index, (declared, actual)) in layout.iter().zip(&entry.params).enumerate() {
        // The alignment of a struct in the PTX may be larger than Rust's, never smaller.
        if declared.size != actual.size || declared.align > actual.align {
            let name = declaration.params.get(index).copied().unwrap_or("?");
            return refuse(
                "a parameter",
                format!("{} bytes aligned to {} for `{name}`", declared.size, declared.align),
                format!("{} bytes aligned to {}", actual.size, actual.align),
            );
        }
    }
    if let Some(required) = entry.required_block
        && required != declaration.block
    {
        return refuse("the block", format!("{:?}", declaration.block), format!("{required:?}"));
    }
    if let Some(required) = entry.required_cluster
        && required != declaration.cluster
    {
        return refuse("the cluster", format!("{:?}", declaration.cluster), format!("{required:?}"));
    }
    let threads: u64 = declaration.block.iter().map(|&length| u64::from(length)).product();
    if let Some(limit) = entry.max_threads
        && threads > u64::from(limit)
    {
        return refuse("the largest block", format!("{threads} threads"), format!("{limit} threads"));
    }
    if let Some(noted) = entry.shared_bytes
        && noted != declaration.shared_bytes
    {
        return refuse("the dynamic shared memory", declaration.shared_bytes.to_string(), noted.to_string());
    }
    if threads > u64::from(resources.max_threads) {
        return refuse(
            "the largest block that its registers allow",
            format!("{threads} threads"),
            format!("{} threads", resources.max_threads),
        );
    }
    Ok(())
}

/// Refuses an entry that was not made of the function that a safe kernel's type was made of: a launch without `unsafe` relies on that function.
pub(crate) fn check_source(declaration: &Declaration, entry: &PtxEntry) -> Result<()> {
    let Some(expected) = declaration.source else { return Ok(()) };
    if entry.source == Some(expected) {
        return Ok(());
    }
    Err(Error::KernelMismatch {
        kernel: entry.name.clone(),
        quantity: "the fingerprint of the source",
        expected: format!("{expected:#018x}, of the safe function that the kernel's type was made of"),
        actual: entry.source.map_or_else(|| "absent".into(), |source| format!("{source:#018x}")),
    })
}

#[cfg(test)]
mod tests;
