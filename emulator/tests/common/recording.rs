//! Results that a GPU gave: cases, the kernel around each, and the file that they are kept in.
//!
//! A case is a few instructions that are run in one thread for each of many inputs. `cargo xtask record` writes the file on
//! a machine with a GPU and shares this module; the tests replay it on every machine.

use std::collections::BTreeMap;

/// The inputs of one thread.
pub(crate) type Input = [u64; 4];

/// Threads in a block, when a case is run.
pub(crate) const BLOCK: u32 = 128;

/// A case. Its body finds the thread's inputs in `%a…`, `%b…`, `%c…` and `%e…`, each with the suffix `16`, `32`, `64` or `p`;
/// `%in` points to them in global memory, `%s` and `%l` to copies in shared and local memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Case {
    /// The form, as it is spelled in the body.
    pub(crate) form: String,
    pub(crate) body: String,
    /// The registers that hold the results, without `%`: `d32`.
    pub(crate) results: Vec<String>,
    /// The name of the inputs.
    pub(crate) inputs: String,
    /// The results: all threads' first ones, then all second ones.
    pub(crate) outputs: Vec<u64>,
}

impl Case {
    /// The bits of a register, by its name's suffix.
    pub(crate) fn bits(register: &str) -> u32 {
        register[1..].parse().unwrap_or(1)
    }

    /// The entry that runs the case, as `name`, with two parameters: the inputs and the outputs, 64 bits each.
    pub(crate) fn entry(&self, name: &str) -> String {
        let mut text = format!(
            ".visible .entry {name}(.param .u64 {name}_in, .param .u64 {name}_out)\n{{\n\
             .local .align 16 .b8 local[32];\n.shared .align 16 .b8 shared[4096];\n.reg .b64 %in, %out, %x, %l;\n\
             .reg .b32 %t, %u, %s;\n"
        );
        for letter in ["a", "b", "c", "e", "d", "f", "g", "h", "v"] {
            text += &format!(
                ".reg .b64 %{letter}64; .reg .b32 %{letter}32; .reg .b16 %{letter}16; .reg .pred %{letter}p;\n"
            );
        }
        text += &format!(
            "ld.param.u64 %in, [{name}_in];\nld.param.u64 %out, [{name}_out];\nmov.u32 %t, %tid.x;\n\
             mov.u32 %u, %ctaid.x;\nmad.lo.u32 %u, %u, {BLOCK}, %t;\nmad.wide.u32 %in, %u, 32, %in;\n\
             mad.wide.u32 %out, %u, {}, %out;\nmov.u32 %s, shared;\nmad.lo.u32 %s, %t, 32, %s;\nmov.u64 %l, local;\n",
            8 * self.results.len()
        );
        for (i, letter) in ["a", "b", "c", "e"].iter().enumerate() {
            let at = 8 * i;
            text += &format!(
                "ld.global.b64 %{letter}64, [%in+{at}];\ncvt.u32.u64 %{letter}32, %{letter}64;\n\
                 cvt.u16.u64 %{letter}16, %{letter}64;\nsetp.ne.u64 %{letter}p, %{letter}64, 0;\n"
            );
            if self.body.contains("%s") {
                text += &format!("st.shared.b64 [%s+{at}], %{letter}64;\n");
            }
            if self.body.contains("%l") {
                text += &format!("st.local.b64 [%l+{at}], %{letter}64;\n");
            }
        }
        text += &self.body;
        for (i, register) in self.results.iter().enumerate() {
            text += &match Self::bits(register) {
                16 => format!("\ncvt.u64.u16 %x, %{register};"),
                32 => format!("\ncvt.u64.u32 %x, %{register};"),
                1 => format!("\nselp.b64 %x, 1, 0, %{register};"),
                _ => format!("\nmov.b64 %x, %{register};"),
            };
            text += &format!("\nst.global.b64 [%out+{}], %x;", 8 * i);
        }
        text + "\nret;\n}\n"
    }
}

/// Cases and the inputs that they share.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Recording {
    pub(crate) inputs: BTreeMap<String, Vec<Input>>,
    pub(crate) cases: Vec<Case>,
}

/// Inputs that need not be kept: all values of so many bits, in the first operand.
pub(crate) fn exhaustive(name: &str) -> Option<Vec<Input>> {
    let bits = name.strip_prefix("all")?.parse::<u32>().ok().filter(|&bits| bits <= 16)?;
    Some((0..1 << bits).map(|value| [value, 0, 0, 0]).collect())
}

impl Recording {
    /// The inputs of a case.
    pub(crate) fn inputs(&self, case: &Case) -> Vec<Input> {
        let kept = || self.inputs.get(&case.inputs).cloned().unwrap_or_default();
        exhaustive(&case.inputs).unwrap_or_else(kept)
    }

    /// The file's bytes, not yet compressed.
    pub(crate) fn to_bytes(&self) -> Vec<u8> {
        let mut out = Vec::new();
        put(&mut out, self.inputs.len());
        for (name, inputs) in &self.inputs {
            put_text(&mut out, name);
            let values: Vec<u64> = (0..4).flat_map(|i| inputs.iter().map(move |input| input[i])).collect();
            put_values(&mut out, &values, 64);
        }
        put(&mut out, self.cases.len());
        for case in &self.cases {
            put_text(&mut out, &case.form);
            put_text(&mut out, &case.body);
            put_text(&mut out, &case.results.join(" "));
            put_text(&mut out, &case.inputs);
            let threads = case.outputs.len() / case.results.len().max(1);
            for (outputs, register) in case.outputs.chunks(threads.max(1)).zip(&case.results) {
                put_values(&mut out, outputs, Case::bits(register));
            }
        }
        out
    }

    /// Reads what [`to_bytes`](Self::to_bytes) wrote; nothing if it is something else.
    pub(crate) fn from_bytes(mut bytes: &[u8]) -> Option<Self> {
        let from = &mut bytes;
        let mut recording = Self::default();
        for _ in 0..take(from)? {
            let name = take_text(from)?;
            let values = take_values(from, 64)?;
            let threads = values.len() / 4;
            let input = |t: usize| std::array::from_fn(|i| values[i * threads + t]);
            recording.inputs.insert(name, (0..threads).map(input).collect());
        }
        for _ in 0..take(from)? {
            let (form, body) = (take_text(from)?, take_text(from)?);
            let results: Vec<String> = take_text(from)?.split_whitespace().map(str::to_owned).collect();
            let inputs = take_text(from)?;
            let mut outputs = Vec::new();
            for register in &results {
                outputs.extend(take_values(from, Case::bits(register))?);
            }
            recording.cases.push(Case { form, body, results, inputs, outputs });
        }
        from.is_empty().then_some(recording)
    }
}

fn put(out: &mut Vec<u8>, value: usize) {
    out.extend((value as u32).to_le_bytes());
}

fn put_text(out: &mut Vec<u8>, text: &str) {
    put(out, text.len());
    out.extend(text.bytes());
}

/// Values as the differences of each to the one before, all lowest bytes first, then the next ones: what is alike stands
/// together, which compresses well.
fn put_values(out: &mut Vec<u8>, values: &[u64], bits: u32) {
    put(out, values.len());
    let before = std::iter::once(0).chain(values.iter().copied());
    let steps: Vec<u64> =
        values.iter().zip(before).map(|(&value, before)| value.wrapping_sub(before)).collect();
    for byte in 0..bits.div_ceil(8) {
        out.extend(steps.iter().map(|step| (step >> (8 * byte)) as u8));
    }
}

fn take(from: &mut &[u8]) -> Option<usize> {
    let (value, rest) = from.split_first_chunk()?;
    *from = rest;
    Some(u32::from_le_bytes(*value) as usize)
}

fn take_bytes<'a>(from: &mut &'a [u8], count: usize) -> Option<&'a [u8]> {
    let (bytes, rest) = from.split_at_checked(count)?;
    *from = rest;
    Some(bytes)
}

fn take_text(from: &mut &[u8]) -> Option<String> {
    let count = take(from)?;
    String::from_utf8(take_bytes(from, count)?.to_vec()).ok()
}

fn take_values(from: &mut &[u8], bits: u32) -> Option<Vec<u64>> {
    let count = take(from)?;
    let bytes = bits.div_ceil(8);
    let planes = take_bytes(from, count * bytes as usize)?;
    let mask = u64::MAX >> (64 - 8 * bytes);
    let mut value = 0u64;
    let step = |i: usize| {
        (0..bytes as usize).fold(0, |step, byte| step | u64::from(planes[byte * count + i]) << (8 * byte))
    };
    Some(
        (0..count)
            .map(|i| {
                value = value.wrapping_add(step(i)) & mask;
                value
            })
            .collect(),
    )
}
