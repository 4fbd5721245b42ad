//! How the kernels of the family `rotary` are run: heads of which all is turned or a part, in both pairings, of positions that the table has and has not, with fewer
//! threads than pairs, heads and tokens.

use warpsmith_dsl::launch::{Global, GlobalMut};
use warpsmith_dsl::rotary::RotaryParams;
use warpsmith_emulator::{Config, LaunchError, Module, Report};
use warpsmith_lab::bound::elementwise::rotated;

use super::Problem;
use super::rows::{Float, Operands, UNTOUCHED, number};

/// The problems that an entry of this family is run on; none if the name is no such entry's.
pub(super) fn problems(name: &str) -> Option<Vec<Box<dyn Problem>>> {
    let rest = name.strip_prefix("rotary_")?;
    let (is_any, rest) = rest.strip_prefix("any_").map_or((false, rest), |rest| (true, rest));
    let of = Float::named(rest)?;
    let per = if is_any { 1 } else { 16 / of.bytes() };
    // Parts of a head, those that are turned, and whether pairs are neighbours.
    let mut parts = vec![(2, 2, false), (5, 4, false), (7, 4, false), (2, 2, true), (9, 6, true)];
    if is_any {
        parts.extend([(5, 4, true), (40, 38, false)]);
    } else {
        parts.extend([(1, 1, true), (3, 3, true), (4, 3, true), (9, 5, true)]);
    }
    let mut all = Vec::new();
    for (number, (width, rotary, neighbours)) in parts.into_iter().enumerate() {
        let case = Case {
            of,
            tokens: [1, 3],
            heads: 3,
            width: width * per,
            rotary: rotary * per,
            neighbours,
            positions: false,
            is_inverse: false,
            copies: true,
            gap: per,
            lanes: 2,
            teams: 1,
            blocks: 1,
        };
        all.extend([
            case,
            Case { tokens: [2, 5], positions: true, heads: 2, lanes: 4, teams: 2, gap: 0, ..case },
            Case { tokens: [3, 3], heads: 1, lanes: 16, teams: 8, is_inverse: true, blocks: 2, ..case },
            Case { tokens: [1, 9], heads: 9, lanes: 1 << (number % 5), teams: 2, copies: false, ..case },
            Case { tokens: [2, 2], heads: 4, lanes: 1, positions: true, copies: number % 2 == 0, ..case },
        ]);
    }
    all.push(Case { tokens: [2, 150], lanes: 1, heads: 1, ..all[0] });
    Some(all.into_iter().map(|case| Box::new(case) as Box<dyn Problem>).collect())
}

/// Positions that the table has, and the first token's where they are counted.
const KNOWN: usize = 7;
const OFFSET: usize = 2;

#[derive(Clone, Copy, Debug)]
struct Case {
    of: Float,
    /// Sequences, and tokens of each.
    tokens: [usize; 2],
    heads: usize,
    width: usize,
    rotary: usize,
    neighbours: bool,
    /// Whether tokens have positions of their own.
    positions: bool,
    is_inverse: bool,
    copies: bool,
    /// Elements between heads.
    gap: usize,
    lanes: u32,
    teams: u32,
    blocks: u32,
}

impl Case {
    fn position(&self, token: usize) -> usize {
        if self.positions { [6, 0, 7, 3, 900][token % 5] } else { OFFSET + token % self.tokens[1] }
    }

    /// The other element of a pair, the pair's number, and whether this element is the first; none of what is not turned.
    fn pair(&self, column: usize) -> Option<(usize, usize, bool)> {
        let pairs = self.rotary / 2;
        if column >= self.rotary {
            return None;
        }
        Some(match self.neighbours {
            true => (column ^ 1, column / 2, column.is_multiple_of(2)),
            false if column < pairs => (column + pairs, column, true),
            false => (column - pairs, column - pairs, false),
        })
    }
}

impl Problem for Case {
    fn name(&self) -> &str {
        match (self.neighbours, self.rotary < self.width) {
            (true, true) => "neighbours of parts of heads",
            (true, false) => "neighbours",
            (false, true) => "halves of parts of heads",
            (false, false) => "halves",
        }
    }

    fn run(&self, module: &Module, shared_bytes: u32, config: Config) -> Result<(Report, bool), LaunchError> {
        let &Self { of, tokens: [sequences, length], heads, width, rotary, gap, .. } = self;
        let mut operands = Operands::new(config);
        let (tokens, pairs) = (sequences * length, rotary / 2);
        let element = |row: usize, column: usize| number(0, row * width + column);
        let angle = |position: usize, pair: usize| {
            [number(1, position * pairs + pair), number(2, position * pairs + pair)]
        };
        let x = operands.rows(of, [tokens * heads, width, gap], element)?;
        let table = operands
            .rows(Float::F32, [KNOWN, 2 * pairs, 0], |position, at| angle(position, at / 2)[at % 2])?;
        let y = operands.results(of, [tokens * heads, width, 2 * gap], |row, column| {
            let position = self.position(row / heads);
            match self.pair(column) {
                None if self.copies => (element(row, column), 0.0),
                None => (UNTOUCHED, 0.0),
                Some(_) if position >= KNOWN => (f64::NAN, 0.0),
                Some((other, pair, is_first)) => {
                    let [cosine, sine] = angle(position, pair);
                    let sine = if self.is_inverse { -sine } else { sine };
                    let (own, other) = (element(row, column), element(row, other));
                    match is_first {
                        true => rotated([own, other], [cosine, sine], of.dtype())[0],
                        false => rotated([other, own], [cosine, sine], of.dtype())[1],
                    }
                }
            }
        })?;
        let mut positions = 0;
        if self.positions {
            let bytes: Vec<u8> =
                (0..tokens).flat_map(|token| (self.position(token) as u32).to_le_bytes()).collect();
            positions = operands.bytes(&bytes)?;
        }
        let strides = |head: u64| [head * (heads * length) as u64, head * heads as u64, head];
        let params = RotaryParams::<u8> {
            x: Global::new(x.base),
            y: GlobalMut::new(y.base),
            table: Global::new(table.base),
            positions: Global::new(positions),
            x_strides: strides(x.stride),
            y_strides: strides(y.stride),
            tokens: tokens as u32,
            length: length as u32,
            heads: heads as u32,
            width: width as u32,
            rotary: rotary as u32,
            known: KNOWN as u32,
            offset: OFFSET as u32,
            lanes: self.lanes,
            teams: self.teams,
            sign: if self.is_inverse { -1.0 } else { 1.0 },
            neighbours: u32::from(self.neighbours),
            copies: u32::from(self.copies),
        };
        operands.launch(module, shared_bytes, [self.blocks, 1], (params,))
    }
}
