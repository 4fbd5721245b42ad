//! Broken kernels must be found: a sample of the mutants of every shipped kernel, drawn from a seed, and every one without a proxy fence.
//!
//! All of them take hours (`cargo xtask mutants`); what became of each that was run is in a committed table, and those drawn here are as that says. It is of
//! the kernels as they are now, which `cargo xtask mutants --check` makes sure of. Of a kernel that the table has whole, none is missed. Among
//! those drawn are mutants that are proven to do what the kernel does; whether they do is tested too.

use std::collections::BTreeSet;

use libtest_mimic::{Failed, Trial};
use proptest::prelude::RngExt;
use warpsmith_emulator::FindingKind;
use warpsmith_tests::mutants::mutate::mutants;
use warpsmith_tests::mutants::report::{Row, Table};
use warpsmith_tests::mutants::{Entry, Kind, Shipped, Subject, Verdict, shipped};

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
        let table = Table::read()?;
        let mut of_whole = table.rows.iter().filter(|row| table.entries.contains_key(&row.kernel));
        let unexplained = of_whole.find(|row| !row.is_explained());
        unexplained.map_or(Ok(()), |row| Err(format!("{row:?}").into()))
    })];
    let shipped = shipped();
    let fenced: BTreeSet<&str> =
        one_of_each_kind(&shipped).map(|shipped| shipped.entry.name.as_str()).collect();
    for (index, one) in shipped.iter().enumerate() {
        let name = format!("{}::{}::broken_kernels_are_found", prefix(index), one.entry.name);
        let (one, is_fenced) = (one.clone(), fenced.contains(one.entry.name.as_str()));
        let of = one.twin.as_ref().and_then(|of| shipped.iter().find(|other| other.entry.name == *of));
        let of = of.map(|of| of.entry.clone());
        trials.push(crate::timed::trial(name, move || broken(one, of.as_ref(), is_fenced)));
    }
    trials
}

/// Breaks a kernel, whose soundness is tested once for all of it; `of` stands for it in the table.
fn broken(shipped: Shipped, of: Option<&Entry>, is_fenced: bool) -> Result<(), Failed> {
    // Others vote about more than sums that are not finite.
    let is_product =
        ["linear_", "generated_update_"].iter().any(|start| shipped.entry.name.starts_with(start));
    let votes_once = is_product && shipped.entry.has_instruction("vote.sync");
    let subject = Subject::new(shipped)?;
    sample(&subject, of, &Table::read()?)?;
    if is_fenced {
        without_proxy_fences(&subject)?;
    }
    if votes_once {
        without_second_sums(&subject)?;
    }
    Ok(())
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

/// Runs some of an entry's mutants; the seed decides which. Of an entry that the table has a sample of, they are drawn from those that are explained
/// there. Those of a twin are not in the table: of one whose likeness has a sample, they are the same as those of that one which a check reported.
fn sample(subject: &Subject, of: Option<&Entry>, table: &Table) -> Result<(), Failed> {
    let name = &subject.entry.name;
    let in_table = of.unwrap_or(&subject.entry);
    if !table.is_of(in_table) && !table.samples(in_table) {
        return Err(format!("the table is of another `{}`: run `cargo xtask mutants`", in_table.name).into());
    }
    let mutants = match of {
        Some(of) => mutants(of),
        None => subject.mutants.clone(),
    };
    let known = table.known(in_table, &mutants);
    let mut drawn: Vec<usize> = (0..subject.mutants.len()).collect();
    if table.samples(in_table) {
        if mutants.len() != subject.mutants.len() {
            return Err(format!("`{name}` has other mutants than `{}`", in_table.name).into());
        }
        // What a check finds does not depend on the type.
        let is_checked = |at: &usize| known[*at].is_some_and(|row| row.verdict == "finding");
        let any_checked = drawn.iter().any(is_checked);
        drawn.retain(|at| match of {
            Some(_) if any_checked => is_checked(at),
            Some(_) => known[*at].is_some_and(Row::is_found),
            None => known[*at].is_some_and(Row::is_explained),
        });
    }
    if drawn.is_empty() {
        return Err(format!("the table has no mutant of `{}` that is found", in_table.name).into());
    }
    let mut rng = crate::properties::rng()?;
    for _ in 0..if of.is_some() { SAMPLE_OF_TWIN } else { SAMPLE } {
        let index = drawn[rng.random_range(0..drawn.len())];
        let mutant = &subject.mutants[index];
        let row = Row::new(&subject.entry, mutant, subject.verdict_by_running(mutant)?);
        if !row.is_explained() {
            return Err(format!("nothing finds this mutant: {row:?}").into());
        }
        // What a check says of a mutant may change with the check.
        if let Some(known) = known[index].filter(|_| of.is_none())
            && known.is_found() != row.is_found()
        {
            return Err(format!("the table has {known:?}, but this is {row:?}").into());
        }
    }
    Ok(())
}

/// Leaves out the second sums of a kernel that has them: those of f32 that are not finite.
fn without_second_sums(subject: &Subject) -> Result<(), Failed> {
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
fn without_proxy_fences(subject: &Subject) -> Result<(), Failed> {
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
