//! What `cargo xtask tune --report` wrote of an H100, for tests that hold the choices of a model to it.

use std::collections::BTreeMap;

/// An operation, the types and the shape, by which the file calls a case.
pub(crate) type Case = [String; 3];

/// The microseconds of every tile of every case.
pub(crate) fn cases() -> BTreeMap<Case, BTreeMap<String, f64>> {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/bench/tune-h100.csv");
    let text = std::fs::read_to_string(path).expect("the tuner's measurements");
    let mut cases: BTreeMap<Case, BTreeMap<String, f64>> = BTreeMap::new();
    for line in text.lines().skip(1) {
        let fields: Vec<&str> = line.splitn(6, ',').collect();
        let &[operation, types, shape, tile, microseconds, _] = &fields[..] else {
            panic!("fields in `{line}`")
        };
        let case = [operation, types, shape].map(str::to_owned);
        cases.entry(case).or_default().insert(tile.into(), microseconds.parse().expect("a number"));
    }
    cases
}

/// What there is to say of the choice of a tile, if it is not within a twentieth of the fastest that was measured.
pub(crate) fn missed(case: &Case, times: &BTreeMap<String, f64>, choice: &str) -> Option<String> {
    let fastest = times.values().copied().fold(f64::INFINITY, f64::min);
    let time = times.get(choice).copied();
    let is_near = time.is_some_and(|time| time <= 1.05 * fastest);
    (!is_near).then(|| format!("{}: {choice}, {time:?}, {fastest}", case.join(" ")))
}
