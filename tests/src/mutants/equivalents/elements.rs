//! Reasons that hold for the kernels of element-wise operations, of rotations and of look-ups.

use super::{ANYTHING, BOUNDS, Equivalent};
use crate::mutants::mutate::Kind;

const NOTHING_MORE: &str = "one more pass, of which every load and store is behind a test of its own";
const WHOLE_CHUNKS: &str = "rows are whole chunks: where one begins is no element before their end";
const NO_SUCH_PAIRS: &str = "what is turned has a first pair, and the pairs that are left of it are even in number, and of 16-bit types a multiple \
                             of four";
const WHOLE_PARTS: &str = "a head's parts are whole: where one begins is no element before the end";

const GATHER: (&str, &str) = ("dsl/src/embedding/gather.rs", "while all.has(first, 0) {");
const HAS: (&str, &str) = ("dsl/src/rows/columns.rs", "return self.column(chunk, 0) < self.columns;");
const WORDS: (&str, &str) = ("dsl/src/launch.rs", "Self::new(self.0 + count * size_of::<T>() as u64)");
const SCALES: (&str, &str) = ("dsl/src/linear_gradient.rs", "for j in 0..PER {");
const ANGLES: (&str, &str) = ("dsl/src/rotary.rs", "let is_there = condition && (i as u32) < count;");
const BOTH: (&str, &str) = ("dsl/src/rotary.rs", "let both = second < end;");

const fn bound(
    family: &'static str,
    statement: &'static str,
    source: (&'static str, &'static str),
    reason: &'static str,
) -> Equivalent {
    Equivalent { family, kinds: BOUNDS, statement, source, then: ANYTHING, reason }
}

pub(super) const EQUIVALENTS: &[Equivalent] = &[
    bound("embedding_", "setp.ge.u32…always false", GATHER, NOTHING_MORE),
    bound("embedding_", "setp.ge.u32…setp.gt", GATHER, NOTHING_MORE),
    bound("embedding_", "setp.lt.u32…setp.le", GATHER, NOTHING_MORE),
    bound("embedding_16", "setp…+ 1", GATHER, WHOLE_CHUNKS),
    bound("embedding_32", "setp…+ 1", GATHER, WHOLE_CHUNKS),
    bound("linear_gradient_f", "setp…+ 1", HAS, WHOLE_CHUNKS),
    bound("linear_gradient_b", "setp…+ 1", HAS, WHOLE_CHUNKS),
    bound("linear_gradient_f", "setp…+ 1", WORDS, WHOLE_CHUNKS),
    bound("linear_gradient_b", "setp…+ 1", WORDS, WHOLE_CHUNKS),
    bound("linear_gradient_f", "setp…+ 1", SCALES, WHOLE_CHUNKS),
    bound("linear_gradient_b", "setp…+ 1", SCALES, WHOLE_CHUNKS),
    bound(
        "adamw_prepare",
        "setp.ne.b32…, 1`",
        ("dsl/src/adamw/prepare.rs", "if id == 0 {"),
        "all threads have what one of them writes",
    ),
    bound(
        "adamw_update_rows",
        "setp…+ 1",
        ("dsl/src/adamw/rows.rs", "while chunk * CHUNK < count {"),
        WHOLE_CHUNKS,
    ),
    bound(
        "linear_gradient_",
        "setp.lt.u32…+ 1",
        ("dsl/src/linear_gradient.rs", "if team >= teams {"),
        "teams are a multiple of those that are read together",
    ),
    bound("embedding_16", "setp…+ 1", HAS, WHOLE_CHUNKS),
    bound("embedding_32", "setp…+ 1", HAS, WHOLE_CHUNKS),
    bound("embedding_gradient_f", "setp…+ 1", HAS, WHOLE_CHUNKS),
    bound("embedding_gradient_b", "setp…+ 1", HAS, WHOLE_CHUNKS),
    bound(
        "embedding_gradient_",
        "and.pred",
        ("dsl/src/embedding/gradient.rs", "goes_on = goes_on & (at + (i as u32) < end) & (keys[i] == key);"),
        "a row that is not added is another token's, or the first: it is there",
    ),
    bound(
        "embedding_order",
        "setp.ne.b32…always false",
        ("dsl/src/embedding/order.rs", "if is_there && before == 0 {"),
        "all lanes with a digit store the same number",
    ),
    Equivalent {
        family: "embedding_distinct_",
        kinds: &[Kind::Barrier],
        statement: "bar.sync",
        source: ("dsl/src/embedding/order.rs", "if lane == warp::SIZE - 1 {"),
        then: ANYTHING,
        reason: "nothing has used shared memory before it",
    },
    bound(
        "update_gradient_",
        "setp.gt.u64",
        ("dsl/src/update_gradient.rs", "let own_gradients = p.own != 0 && p.dcodes.is_there();"),
        "`own` above `teams` in one word: there are teams, but not 2³² − 1 of them",
    ),
    bound(
        "update_gradient_",
        "setp.eq.b32…always false",
        ("dsl/src/update_gradient.rs", "while half > 0 {"),
        "one more pass, of no teams: all threads wait, and none adds anything",
    ),
    bound("rotary_f", "setp.gt.u32", ANGLES, NO_SUCH_PAIRS),
    bound("rotary_b", "setp.gt.u32", ANGLES, NO_SUCH_PAIRS),
    bound("rotary_f", "setp.lt.u32…+ 1", BOTH, WHOLE_PARTS),
    bound("rotary_b", "setp.lt.u32…+ 1", BOTH, WHOLE_PARTS),
];
