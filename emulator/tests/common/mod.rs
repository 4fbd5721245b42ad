//! What the tests share: running a piece of PTX on given bits.
#![allow(dead_code, reason = "each test file uses its part")]

use std::io::Write as _;

use warpsmith_emulator::{
    Config, Finding, LaunchConfig, LaunchError, Machine, Module, ParseError, Report, forms,
};

/// Names a file to which every form in the texts that tests parse is written.
pub(crate) const FORMS_FILE: &str = "WARPSMITH_EMULATOR_FORMS_FILE";

/// Parses a module; notes its forms, if that is asked for.
pub(crate) fn parse(file: &str, text: &str) -> Result<Module, ParseError> {
    let module = Module::parse(file, text)?;
    if let Some(path) = std::env::var_os(FORMS_FILE) {
        let list: String = forms::used_in(file, text)?.into_keys().map(|form| form + "\n").collect();
        let mut file = std::fs::OpenOptions::new().create(true).append(true).open(path).unwrap();
        file.write_all(list.as_bytes()).unwrap();
    }
    Ok(module)
}

/// A module around some text.
pub(crate) fn module(text: &str) -> Module {
    let text = format!(".version 7.8\n.target sm_80\n.address_size 64\n{text}");
    parse("test.ptx", &text).unwrap_or_else(|error| panic!("{error}\n{text}"))
}

/// A module for Hopper.
pub(crate) fn hopper_module(text: &str) -> Module {
    let text = format!(".version 8.6\n.target sm_90a\n.address_size 64\n{text}");
    parse("test.ptx", &text).unwrap_or_else(|error| panic!("{error}\n{text}"))
}

/// Launches the only kernel of a module with 64-bit arguments.
pub(crate) fn launch(
    machine: &Machine,
    module: &Module,
    grid: u32,
    block: u32,
    dynamic_shared: u32,
    arguments: &[u64],
) -> Result<Report, LaunchError> {
    let config =
        LaunchConfig { grid: [grid, 1, 1], block: [block, 1, 1], dynamic_shared, ..LaunchConfig::default() };
    let bytes: Vec<[u8; 8]> = arguments.iter().map(|a| a.to_le_bytes()).collect();
    let arguments: Vec<&[u8]> = bytes.iter().map(|b| &b[..]).collect();
    let name = module.kernels().next().unwrap().name.clone();
    machine.launch(module, &name, &config, &arguments)
}

/// The finding of a launch that must fail.
pub(crate) fn finding(result: Result<Report, LaunchError>) -> Finding {
    match result {
        Err(LaunchError::Finding(finding)) => *finding,
        other => panic!("expected a finding, got {other:?}"),
    }
}

/// Runs `body` in one thread for each of `inputs`. It finds its operands in `%a…`, `%b…`, `%c…` and `%e…`, each with
/// the suffix `16`, `32`, `64` or `p`, and leaves its result in `%d…`; `result` is the suffix of the register that
/// comes back.
pub(crate) fn evaluate(body: &str, result: &str, inputs: &[[u64; 4]]) -> Vec<u64> {
    let mut text = String::from(
        ".visible .entry test(.param .u64 p_in, .param .u64 p_out)\n{\n\
         .reg .b64 %in, %out, %x, %a64, %b64, %c64, %e64, %d64;\n\
         .reg .b32 %t, %a32, %b32, %c32, %e32, %d32;\n\
         .reg .b16 %a16, %b16, %c16, %e16, %d16;\n\
         .reg .pred %ap, %bp, %cp, %ep, %dp, %qp;\n\
         ld.param.u64 %in, [p_in];\nld.param.u64 %out, [p_out];\n\
         mov.u32 %t, %tid.x;\nmad.wide.u32 %in, %t, 32, %in;\nmad.wide.u32 %out, %t, 8, %out;\n\
         mov.b64 %d64, 0;\nmov.b32 %d32, 0;\nmov.b16 %d16, 0;\nmov.pred %dp, 0;\nmov.pred %qp, 0;\n",
    );
    for (i, name) in ["a", "b", "c", "e"].iter().enumerate() {
        text += &format!(
            "ld.global.b64 %{name}64, [%in+{}];\ncvt.u32.u64 %{name}32, %{name}64;\n\
             cvt.u16.u64 %{name}16, %{name}64;\nsetp.ne.u64 %{name}p, %{name}64, 0;\n",
            i * 8
        );
    }
    text += body;
    text += match result {
        "16" => "\ncvt.u64.u16 %x, %d16;\n",
        "32" => "\ncvt.u64.u32 %x, %d32;\n",
        "p" => "\nselp.b64 %x, 1, 0, %dp;\n",
        _ => "\nmov.b64 %x, %d64;\n",
    };
    text += "st.global.b64 [%out], %x;\nret;\n}\n";
    let module = module(&text);
    let machine = Machine::new(Config { threads: Some(1), ..Config::default() });
    let mut outputs = Vec::new();
    for inputs in inputs.chunks(1024) {
        let data: Vec<u8> = inputs.iter().flatten().flat_map(|v| v.to_le_bytes()).collect();
        let input = machine.allocate(data.len() as u64).unwrap();
        machine.write(input, &data).unwrap();
        let output = machine.allocate(inputs.len() as u64 * 8).unwrap();
        launch(&machine, &module, 1, inputs.len() as u32, 0, &[input, output])
            .unwrap_or_else(|error| panic!("{error}\n{text}"));
        let mut back = vec![0; inputs.len() * 8];
        machine.read(output, &mut back).unwrap();
        outputs.extend(back.chunks_exact(8).map(|c| u64::from_le_bytes(c.try_into().unwrap())));
    }
    outputs
}
