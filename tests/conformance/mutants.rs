//! Broken kernels must be found: a sample of the mutants of every shipped kernel, drawn from a seed, and every one without a proxy fence.
//!
//! All of them take minutes (`cargo xtask mutants`); what became of each is in a committed table. A sample is as that says, if it is
//! of the kernel as it is now, which `cargo xtask mutants --check` makes sure of. In any case none is missed, but of entries that the
//! table calls pending. Among those drawn are
//! mutants that are proven to do what the kernel does; whether they do is tested too.

use libtest_mimic::{Failed, Trial};
use proptest::prelude::RngExt;
use warpsmith_emulator::FindingKind;
use warpsmith_tests::mutants::report::{Row, Table};
use warpsmith_tests::mutants::{Kind, Shipped, Subject, Verdict, shipped};

/// Mutants of each kernel that are run.
const SAMPLE: usize = 5;
/// The same where another kernel stands for it in the table.
const SAMPLE_OF_TWIN: usize = 2;
const PROXY_FENCE: &str = "fence.proxy.async";
/// The kernels that call `end_loads`: their names, and how many fences of theirs are of that function. The others of these kernels, and
/// those of other kernels, stand behind writes.
const ENDS_OF_LOADS: [(&str, &str, usize); 5] = [
    ("linear_hopper_f32_", "", 1),
    ("linear_narrow_", "", 1),
    ("linear_update_hopper_", "_16x64", 1),
    // Tiles of keys load the numbers of queries; those of queries load nothing from their rings.
    ("attention_gradient_hopper_k", "", 1),
    ("attention_gradient_hopper_v", "", 1),
];

/// Of so many kernels, the mutants of one are run where slow tests are not.
const QUICK: usize = 16;

/// The prefix of a test's name, which says whether it is slow.
fn prefix(index: usize) -> &'static str {
    if index.is_multiple_of(QUICK) { "emulator::mutants" } else { "slow::emulator::mutants" }
}

pub(crate) fn trials() -> Vec<Trial> {
    let mut trials = vec![crate::timed::trial("emulator::mutants::the_table_explains_every_mutant", || {
        let unexplained = Table::read()?.rows.into_iter().find(|row| !row.is_explained());
        unexplained.map_or(Ok(()), |row| Err(format!("{row:?}").into()))
    })];
    let shipped = shipped();
    for (index, shipped) in one_of_each_kind(&shipped).enumerate() {
        let name = format!("{}::{}::every_missing_proxy_fence_is_found", prefix(index), shipped.entry.name);
        let shipped = shipped.clone();
        trials.push(crate::timed::trial(name, move || without_proxy_fences(shipped)));
    }
    // Others vote about more than that.
    let votes_once = |one: &&Shipped| {
        let is_product =
            ["linear_", "generated_update_"].iter().any(|start| one.entry.name.starts_with(start));
        is_product && one.entry.has_instruction("vote.sync")
    };
    for (index, shipped) in shipped.iter().filter(votes_once).enumerate() {
        let name = format!("{}::{}::a_missing_second_sum_is_found", prefix(index), shipped.entry.name);
        let shipped = shipped.clone();
        trials.push(crate::timed::trial(name, move || without_second_sums(shipped)));
    }
    for (index, shipped) in shipped.into_iter().enumerate() {
        let name = format!("{}::{}::a_sample_is_found_or_explained", prefix(index), shipped.entry.name);
        trials.push(crate::timed::trial(name, move || sample(shipped, &Table::read()?)));
    }
    trials
}

/// Of the kernels with proxy fences, one of each set of twins: its first in one set, its second in the next. All of them would take twice
/// the time, and this way each type is run of some kernels.
fn one_of_each_kind(shipped: &[Shipped]) -> impl Iterator<Item = &Shipped> {
    let fenced = shipped.iter().filter(|one| one.twin.is_none() && one.entry.has_instruction(PROXY_FENCE));
    fenced.enumerate().filter_map(|(index, first)| {
        let is_twin = |one: &&Shipped| one.twin.as_ref() == Some(&first.entry.name);
        let twins: Vec<_> = std::iter::once(first).chain(shipped.iter().filter(is_twin)).collect();
        twins.get(index % twins.len()).copied()
    })
}

/// Runs some of an entry's mutants; the seed decides which. Those of a twin are not in the table.
fn sample(shipped: Shipped, table: &Table) -> Result<(), Failed> {
    let subject = Subject::new(shipped)?;
    let known = table.known(&subject.entry, &subject.mutants);
    let name = &subject.entry.name;
    let is_pending = table.pending.contains(table.twins.get(name).unwrap_or(name));
    let mut rng = crate::properties::rng()?;
    for _ in 0..if table.twins.contains_key(name) { SAMPLE_OF_TWIN } else { SAMPLE } {
        let index = rng.random_range(0..subject.mutants.len());
        let mutant = &subject.mutants[index];
        let row = Row::new(&subject.entry, mutant, subject.verdict_by_running(mutant)?);
        if !row.is_explained() && !is_pending {
            return Err(format!("nothing finds this mutant: {row:?}").into());
        }
        // What a check says of a mutant may change with the check.
        if let Some(known) = known[index]
            && known.is_found() != row.is_found()
        {
            return Err(format!("the table has {known:?}, but this is {row:?}").into());
        }
    }
    Ok(())
}

/// Leaves out the second sums of a kernel that has them: those of f32 that are not finite.
fn without_second_sums(shipped: Shipped) -> Result<(), Failed> {
    let subject = Subject::new(shipped)?;
    if !subject.adds_again() {
        return Err("no problem of this kernel has infinities".into());
    }
    match subject.verdict_without_second_sums()? {
        Verdict::WrongResult(_) => Ok(()),
        verdict => Err(format!("sums that are not finite are not missed: {verdict:?}").into()),
    }
}

/// Leaves out each proxy fence of an entry. On a GPU it may be long before one is missed, so a check has to find every one: between reads
/// and a copy onto the same bytes, as between writes and a copy or product that reads them. One that another fence stands behind has a
/// reason in the table of those.
///
/// Where the fence is that of `end_loads`, the finding has to be that of a read. Of twins, kernels that are the same but for a type, one is
/// run: see [`one_of_each_kind`].
fn without_proxy_fences(shipped: Shipped) -> Result<(), Failed> {
    let subject = Subject::new(shipped)?;
    let (mut behind_reads, mut behind_writes) = (0, 0);
    for mutant in &subject.mutants {
        if mutant.kind != Kind::Fence || !subject.is_of(mutant, PROXY_FENCE) {
            continue;
        }
        match subject.verdict_by_running(mutant)? {
            Verdict::Finding(FindingKind::UnfencedRead, _) => behind_reads += 1,
            Verdict::Finding(FindingKind::ProxyFence, _) => behind_writes += 1,
            Verdict::Equivalent(_) => {}
            verdict => {
                let line = subject.line(mutant);
                return Err(
                    format!("line {line}: nothing reports `{}`: {verdict:?}", mutant.description).into()
                );
            }
        }
    }
    let name = &subject.entry.name;
    let is_of = |(start, end, _): &&(&str, &str, usize)| name.starts_with(start) && name.ends_with(end);
    let expected = ENDS_OF_LOADS.iter().find(is_of).map_or(0, |&(_, _, fences)| fences);
    if behind_reads != expected {
        return Err(
            format!("reads are missed by {behind_reads} fences that are left out, not {expected}").into()
        );
    }
    if behind_reads + behind_writes == 0 {
        return Err("no proxy fence of this kernel is missed".into());
    }
    Ok(())
}
