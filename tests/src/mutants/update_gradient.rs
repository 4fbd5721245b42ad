//! How the kernels of the family `update_gradient` are run: codes of each row and of groups, strips that end at each of a thread's rows, every number of teams, and every
//! result.

use warpsmith_dsl::launch::{Global, GlobalMut};
use warpsmith_dsl::rows::{AnyRows, THREADS};
use warpsmith_dsl::update_gradient::{ROWS, UpdateGradientParams};
use warpsmith_emulator::{Config, LaunchError, Module, Report};
use warpsmith_lab::bound::backward::Near;

use super::Problem;
use super::rows::{Float, Operands, number};

/// The problems that an entry of this family is run on; none if the name is no such entry's.
pub(super) fn problems(name: &str) -> Option<Vec<Box<dyn Problem>>> {
    let of = Float::named(name.strip_prefix("update_gradient_")?)?;
    let base = Case {
        of,
        dcodes: Some(Float::F32),
        has: [true; 2],
        own: false,
        adds: false,
        rows: 1,
        group: 1,
        strip: 1,
        columns: 3,
        gap: 2,
        threads: 4,
        teams: 1,
        is_below: false,
    };
    let types = [Float::F16, Float::Bf16, Float::F32];
    let mut cases = Vec::new();
    // Each kind of result, and some of them alone, of groups and of rows with codes of their own.
    for own in [false, true] {
        for (number, &dcodes) in types.iter().enumerate() {
            let case = Case { own, dcodes: Some(dcodes), rows: 10, group: 5, strip: 5, ..base };
            cases.push(Case { adds: number != 1, ..case });
            cases.push(Case { adds: number == 1, teams: 2, ..case });
        }
        let case = Case { own, rows: 6, group: 3, strip: 3, ..base };
        cases.extend([[true, false], [false, true], [true, true]].map(|has| Case {
            has,
            dcodes: None,
            ..case
        }));
        cases.extend([[true, false], [false, true], [false; 2]].map(|has| Case { has, ..case }));
    }
    // Strips that end at each of a thread's rows, of one round and of two, for some or all of the teams.
    for end in 1..=2 * ROWS as usize {
        for (threads, teams, columns) in [(128, 2, 70), (64, 4, 64), (32, 2, 17)] {
            for before in [0, 1] {
                let rows = end * teams as usize - before;
                let case = Case { threads, teams, columns, rows, group: rows, strip: rows, ..base };
                cases.push(case);
                cases.push(Case { own: true, gap: 0, dcodes: Some(types[end % 3]), ..case });
            }
        }
    }
    // All of a thread's rows added to what is there.
    for dcodes in types.map(Some) {
        let rows = 2 * ROWS as usize;
        let case = Case { threads: 128, teams: 2, rows, group: rows, strip: rows, ..base };
        cases.push(Case { own: true, adds: true, dcodes, ..case });
    }
    // Groups of several strips, of which the last has fewer rows; their sums side by side, or below each other.
    for (teams, is_below) in [(1, false), (4, true), (16, false)] {
        let strip = 4 * teams as usize;
        for group in [2 * strip, 2 * strip + 1, 3 * strip - 1] {
            let case = Case { teams, threads: 16, columns: 11, group, strip, is_below, ..base };
            cases.push(Case { rows: 2 * group, ..case });
        }
    }
    // More groups than a block has places for, and fewer; rows of their own that the last group has fewer of.
    for groups in [1, 15, 16, 17, 33] {
        let case = Case { threads: 8, teams: 2, columns: 8, group: 3, strip: 3, gap: 0, ..base };
        cases.push(Case { rows: 3 * groups, ..case });
        let own = Case { own: true, threads: 64, teams: 4, columns: 40, group: 16, strip: 16, ..base };
        cases
            .extend([0, 1, 15].map(|fewer| Case { rows: (16 * groups).saturating_sub(fewer).max(1), ..own }));
    }
    // Every number of teams, with a row for each thread and with a row for all.
    for shift in 0..=8 {
        let threads = THREADS >> shift;
        let teams = 1 << shift;
        let rows = 2 * teams as usize + 1;
        let columns = (threads as usize * 3).div_ceil(4);
        cases.push(Case { threads, teams, columns, rows, group: rows, strip: rows, ..base });
        let columns = threads as usize;
        cases.push(Case { own: true, threads, teams, columns, rows, group: rows, strip: rows, ..base });
    }
    Some(cases.into_iter().map(|case| Box::new(case) as Box<dyn Problem>).collect())
}

#[derive(Clone, Copy, Debug)]
struct Case {
    of: Float,
    dcodes: Option<Float>,
    /// Whether A is wanted, and dH.
    has: [bool; 2],
    own: bool,
    adds: bool,
    rows: usize,
    group: usize,
    strip: usize,
    columns: usize,
    /// Elements between rows.
    gap: usize,
    threads: u32,
    teams: u32,
    /// Whether the sums of a group's strips are below each other.
    is_below: bool,
}

const SCALING: f64 = -1.25;

impl Problem for Case {
    fn name(&self) -> &str {
        if self.own { "the gradient of an update" } else { "the gradient of an update with shared codes" }
    }

    fn run(&self, module: &Module, shared_bytes: u32, config: Config) -> Result<(Report, bool), LaunchError> {
        let &Self { of, rows, columns, group, strip, gap, own, threads, teams, .. } = self;
        let mut operands = Operands::new(config);
        let shape = [rows, columns, gap];
        let element = |operand: u64, row: usize, column: usize| number(operand, row * columns + column);
        let (h, p) = (|row, column| element(0, row, column), |row, column| element(1, row, column));
        let [has_a, has_dh] = self.has;
        let has_dcodes = self.dcodes.is_some();
        let side = |operand: u64, is_there: bool| match is_there {
            true => operands.rows(Float::F32, shape, |row, column| element(operand, row, column)),
            false => Ok(AnyRows { stride: (columns + gap) as u64, ..AnyRows::NONE }),
        };
        let (of_h, of_p) = (side(0, has_a || has_dcodes)?, side(1, has_dh || has_dcodes)?);
        let groups = rows.div_ceil(group);
        let of_codes = |row: usize| if own { row } else { row / group };
        let code = |row: usize, column: usize| of.round(element(2, row, column));
        let code_rows = if own { rows } else { groups };
        let codes = operands.rows(of, [code_rows, columns, gap], |row, column| element(2, row, column))?;
        let bounded = |near: Near, of: Float| {
            let near = near.rounded(of.dtype());
            (near.exact, near.error)
        };
        let exactly = |exact: f64| Near { exact, error: 0.0 };
        let a = match has_a {
            true => operands.results(of, shape, |row, column| {
                let factor = SCALING * code(of_codes(row), column);
                bounded(exactly(h(row, column)).times(factor, 2.0), of)
            })?,
            false => AnyRows { stride: (columns + gap) as u64, ..AnyRows::NONE },
        };
        let dh = match has_dh {
            true => operands.results(of, shape, |row, column| {
                let factor = SCALING * code(of_codes(row), column);
                bounded(exactly(p(row, column)).times(factor, 2.0), of)
            })?,
            false => AnyRows::NONE,
        };
        let strips = if own { 1 } else { group.div_ceil(strip) };
        let [of_group, of_strip] = if self.is_below { [strips, 1] } else { [1, groups] };
        let dcodes = match self.dcodes {
            Some(of_dcodes) => {
                let before = |row: usize, column: usize| {
                    if self.adds { of_dcodes.round(element(3, row, column)) } else { 0.0 }
                };
                // The rows that a row of results is summed over.
                let expected = |to: usize, column: usize| {
                    let terms = if own {
                        to..to + 1
                    } else {
                        let (group_of, strip_of) = if self.is_below {
                            (to / strips, to % strips)
                        } else {
                            (to % groups, to / groups)
                        };
                        let (begin, end) = (group_of * group, rows.min((group_of + 1) * group));
                        (begin + strip_of * strip).min(end)..end.min(begin + (strip_of + 1) * strip)
                    };
                    let terms = terms.map(|row| exactly(h(row, column) * p(row, column)).times(SCALING, 2.0));
                    bounded(Near::sum(terms, before(to, column)), of_dcodes)
                };
                let shape = [if own { rows } else { groups * strips }, columns];
                if self.adds {
                    let there = operands
                        .rows(of_dcodes, [shape[0], columns, 0], |row, column| element(3, row, column))?;
                    operands.become_results(of_dcodes, there, shape, expected);
                    there
                } else {
                    operands.results(of_dcodes, [shape[0], columns, 0], expected)?
                }
            }
            None => AnyRows::NONE,
        };
        let params = UpdateGradientParams::<u8> {
            h: Global::new(of_h.base),
            p: Global::new(of_p.base),
            stride: of_h.stride,
            codes: Global::new(codes.base),
            codes_stride: codes.stride,
            a: GlobalMut::new(a.base),
            dh: GlobalMut::new(dh.base),
            result_stride: a.stride,
            dcodes,
            rows: rows as u32,
            columns: columns as u32,
            groups: groups as u32,
            group: group as u32,
            strip: strip as u32,
            threads,
            teams,
            own: u32::from(own),
            of_group: of_group as u32,
            of_strip: of_strip as u32,
            scaling: SCALING as f32,
            adds: u32::from(self.adds),
        };
        let across = groups.div_ceil((THREADS / (threads * teams)) as usize) as u32;
        operands.launch_grid(module, shared_bytes, [across, strips as u32, 1], 1, (params,))
    }
}
