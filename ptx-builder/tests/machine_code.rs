//! The check on machine code, held against recorded output of nvdisasm: `data/arrivals.sm_90a.txt`, made from `data/arrivals.ptx`.

use warpsmith_builder::machine_code::{self, ListingError, Release, SectionReport};

const RECORDED: &str = include_str!("data/arrivals.sm_90a.txt");

/// Entry, release, and the number of loads that it overtakes.
fn findings(reports: &[SectionReport]) -> Vec<(&str, Release, usize)> {
    let all = reports.iter().flat_map(|report| &report.findings);
    let mut found: Vec<_> =
        all.map(|finding| (finding.at.entry.as_str(), finding.release, finding.loads.len())).collect();
    found.sort_unstable();
    found
}

#[test]
fn arrivals_and_copies_that_overtake_loads_are_found_and_no_others() {
    let reports = machine_code::check(RECORDED).unwrap();
    assert_eq!(
        findings(&reports),
        [
            ("carried", Release::Arrival, 1),
            ("generic", Release::Arrival, 1),
            ("one_path", Release::Arrival, 1),
            ("overtaken", Release::Arrival, 2),
            ("refilled", Release::BulkCopy, 1),
        ]
    );
    let releases = |entry: &str| {
        let report = reports.iter().find(|report| report.entry == entry);
        report.map_or(&[][..], |report| report.releases.as_slice())
    };
    assert_eq!(releases("fenced"), [Release::Arrival], "clean, with an arrival");
    assert_eq!(releases("dependent"), [Release::Arrival], "clean, with an arrival");
    assert_eq!(
        releases("generic"),
        [Release::Arrival, Release::ClusterArrival],
        "only the one before the memory barrier is found"
    );
}

#[test]
fn a_finding_names_address_and_text_of_the_release_and_of_each_load() {
    let reports = machine_code::check(RECORDED).unwrap();
    let overtaken = reports.iter().find(|report| report.entry == "overtaken").unwrap();
    assert_eq!(
        overtaken.findings[0].to_string(),
        "overtaken at 0x0070, `SYNCS.ARRIVE.TRANS64.A1T0 RZ, [UR5], RZ` (arrival) is issued with loads from shared memory in \
         flight:\n    0x0030 `LDS R0, [UR4]`\n    0x0050 `LDS R5, [UR4+0x100]`"
    );
}

#[test]
fn without_the_fence_the_fenced_kernel_is_found() {
    // A `NOP` with the same control bits waits for nothing but its own scoreboards.
    let unfenced = RECORDED.replace("MEMBAR.ALL.CTA", "NOP");
    let reports = machine_code::check(&unfenced).unwrap();
    assert!(findings(&reports).contains(&("fenced", Release::Arrival, 2)), "{:?}", findings(&reports));
}

#[test]
fn a_listing_without_encodings_is_refused() {
    let without: String = RECORDED
        .lines()
        .map(|line| line.split("/* 0x").next().unwrap_or_default().to_owned() + "\n")
        .collect();
    assert!(matches!(machine_code::check(&without), Err(ListingError::Line { .. })));
}
