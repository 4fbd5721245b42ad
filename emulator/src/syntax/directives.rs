//! The grammar of declarations: module header, variables, entries, registers, debug information.

use super::ast::{Body, Class, Entry, Module, Name, Parameter, Registers, Space, Variable};
use super::constant::Value;
use super::lexer::Kind;
use super::parser::Parser;
use crate::error::ParseError;

/// Larger variables are refused; no GPU has room for them.
const MAX_VARIABLE: u64 = 1 << 32;

/// The size in bytes of a fundamental type.
pub(super) fn type_size(name: &str) -> Option<u64> {
    Some(match name {
        "b8" | "u8" | "s8" => 1,
        "b16" | "u16" | "s16" | "f16" | "bf16" => 2,
        "b32" | "u32" | "s32" | "f32" | "f16x2" | "bf16x2" => 4,
        "b64" | "u64" | "s64" | "f64" => 8,
        "b128" => 16,
        _ => return None,
    })
}

/// The bytes of an initial value, for elements of so many bytes.
fn initial_bytes(value: Value, element: u64) -> Option<[u8; 8]> {
    let bits = match (value, element) {
        (Value::Signed(value), _) => value.cast_unsigned(),
        (Value::Unsigned(value), _) => value,
        (Value::Single(bits), 4) => u64::from(bits),
        (Value::Double(value), 4) => u64::from((value as f32).to_bits()),
        (Value::Double(value), 8..) => value.to_bits(),
        _ => return None,
    };
    Some(bits.to_le_bytes())
}

impl<'a> Parser<'_, 'a> {
    pub(super) fn header(&mut self, module: &mut Module<'a>) -> Result<(), ParseError> {
        if !self.accept_dotted("version") {
            return Err(self.expected("`.version`"));
        }
        // `8.0` is a decimal number; `8` alone is not a version.
        let text = self.token_text().split_whitespace().next().unwrap_or_default();
        let numbers = text.split_once('.').map(|(major, minor)| (major.parse(), minor.parse()));
        let (Kind::Double(_), Some((Ok(major), Ok(minor)))) = (self.kind(), numbers) else {
            return Err(self.expected("a version such as 8.0"));
        };
        module.version = (major, minor);
        self.advance();
        if !self.accept_dotted("target") {
            return Err(self.expected("`.target`"));
        }
        module.target.push(self.name("a target such as sm_80")?);
        while self.accept(b',') {
            module.target.push(self.name("a target option")?);
        }
        if self.accept_dotted("address_size") {
            let span = self.span();
            let bits = self.integer("64")?;
            if bits != 64 {
                return Err(self
                    .source
                    .error(span, format!("addresses of {bits} bits: only 64 are supported")));
            }
        }
        Ok(())
    }

    pub(super) fn module_item(&mut self, module: &mut Module<'a>) -> Result<(), ParseError> {
        let mut external = false;
        loop {
            match self.kind() {
                Kind::Dotted("visible" | "weak" | "common") => self.advance(),
                Kind::Dotted("extern") => {
                    external = true;
                    self.advance();
                }
                Kind::Symbol(b';') => {
                    return {
                        self.advance();
                        Ok(())
                    };
                }
                Kind::Dotted("entry") => {
                    self.advance();
                    return self.entry(module);
                }
                Kind::Dotted("func") => {
                    self.advance();
                    return self.function(module);
                }
                Kind::Dotted("file") => return self.file(module),
                Kind::Dotted("loc") => return self.loc().map(|_| ()),
                Kind::Dotted("section") => return self.section(),
                Kind::Dotted("pragma") => return self.pragma(),
                Kind::Dotted("global" | "const" | "shared") => {
                    let variables = self.variables(0, external)?;
                    module.variables.extend(variables);
                    return Ok(());
                }
                Kind::Dotted("alias") => {
                    return Err(self.source.error(self.span(), "`.alias` is not supported"));
                }
                _ => return Err(self.expected("a variable, an entry or a function")),
            }
        }
    }

    pub(super) fn body_directive(
        &mut self,
        body: &mut Body<'a>,
        scope: u32,
        module: &mut Module<'a>,
    ) -> Result<(), ParseError> {
        match self.kind() {
            Kind::Dotted("reg") => self.registers(body, scope),
            Kind::Dotted("local" | "shared" | "global" | "const" | "extern" | "param") => {
                let external = self.accept_dotted("extern");
                let variables = self.variables(scope, external)?;
                body.variables.extend(variables);
                Ok(())
            }
            Kind::Dotted("pragma") => self.pragma(),
            Kind::Dotted("file") => self.file(module),
            _ => Err(self.expected("an instruction, a label or a declaration")),
        }
    }

    fn registers(&mut self, body: &mut Body<'a>, scope: u32) -> Result<(), ParseError> {
        self.advance();
        let vector = match self.kind() {
            Kind::Dotted("v2") => Some(2),
            Kind::Dotted("v4") => Some(4),
            _ => None,
        };
        if vector.is_some() {
            self.advance();
        }
        let (_, class) = self.register_type()?;
        loop {
            let name = self.name("a register name")?;
            let count = if self.accept(b'<') {
                let count = self.literal("a number of registers")?;
                self.expect(b'>')?;
                Some(count)
            } else {
                None
            };
            body.registers.push(Registers { scope, name, count, vector, class });
            if !self.accept(b',') {
                return self.expect(b';');
            }
        }
    }

    /// The type of registers, and its class.
    pub(super) fn register_type(&mut self) -> Result<(&'a str, Class), ParseError> {
        let span = self.span();
        let ty = self.dotted("a register type")?;
        if ty == "pred" {
            return Ok((ty, Class::Predicate));
        }
        match type_size(ty) {
            Some(1 | 2) => Ok((ty, Class::Half)),
            Some(4) => Ok((ty, Class::Word)),
            Some(8) => Ok((ty, Class::Double)),
            Some(_) => Err(self.source.error(span, "128-bit registers are not supported")),
            None => Err(self.source.error(span, format!("`.{ty}` is not a register type"))),
        }
    }

    /// `.space .align n .type name[n] = …, name …;`
    fn variables(&mut self, scope: u32, external: bool) -> Result<Vec<Variable<'a>>, ParseError> {
        let span = self.span();
        let space = match self.dotted("a state space")? {
            "global" => Space::Global,
            "const" => Space::Const,
            "shared" | "shared::cta" => Space::Shared,
            "local" => Space::Local,
            "param" => Space::Param,
            other => return Err(self.source.error(span, format!("`.{other}` is not a state space"))),
        };
        let (mut align, mut vector, mut element) = (None, 1, None);
        while let Kind::Dotted(word) = self.kind() {
            let span = self.span();
            self.advance();
            match word {
                "align" => align = Some(self.alignment()?),
                "v2" => vector = 2,
                "v4" => vector = 4,
                "attribute" => {
                    self.expect(b'(')?;
                    while !self.accept(b')') {
                        if self.kind() == Kind::End {
                            return Err(self.expected("`)`"));
                        }
                        self.advance();
                    }
                }
                _ => match type_size(word) {
                    Some(size) => element = Some(size),
                    None => return Err(self.source.error(span, format!("`.{word}` is not a type"))),
                },
            }
        }
        let Some(element) = element else { return Err(self.expected("a type")) };
        let align = align.unwrap_or(element * vector);
        let mut variables = Vec::new();
        loop {
            let name = self.name("a variable name")?;
            let mut variable = Variable {
                name,
                space,
                align,
                size: None,
                initial: Vec::new(),
                addresses: Vec::new(),
                scope,
            };
            let mut size = Some(element * vector);
            while self.accept(b'[') {
                if self.accept(b']') {
                    size = None;
                    continue;
                }
                let span = self.span();
                let count = self.integer("a number of elements")?;
                self.expect(b']')?;
                size = size.map(|size| size.saturating_mul(count));
                if size.is_some_and(|size| size > MAX_VARIABLE) {
                    return Err(self.source.error(span, "this variable is larger than 4 GiB"));
                }
            }
            if self.accept(b'=') {
                self.initialiser(&mut variable, element)?;
                let given = variable.initial.len() as u64;
                size = Some(size.unwrap_or(given));
                if size.is_some_and(|size| given > size) {
                    let message = format!("`{}` has more initial values than elements", name.text);
                    return Err(self.source.error(name.span, message));
                }
            }
            if size.is_none() && !(external && space == Space::Shared) {
                let message = format!("`{}` has no size: only `.extern .shared` arrays may", name.text);
                return Err(self.source.error(name.span, message));
            }
            if external && size.is_some() && space != Space::Shared {
                let message = format!("`{}` is defined in another module", name.text);
                return Err(self.source.error(name.span, message));
            }
            variable.size = size;
            variables.push(variable);
            if !self.accept(b',') {
                self.expect(b';')?;
                return Ok(variables);
            }
        }
    }

    pub(super) fn alignment(&mut self) -> Result<u64, ParseError> {
        let span = self.span();
        let align = self.integer("an alignment")?;
        if align.is_power_of_two() && align <= 4096 {
            Ok(align)
        } else {
            Err(self.source.error(span, format!("expected a power of two up to 4096, found {align}")))
        }
    }

    fn initialiser(&mut self, variable: &mut Variable<'a>, element: u64) -> Result<(), ParseError> {
        let mut depth = 0;
        loop {
            let span = self.span();
            match self.kind() {
                Kind::Symbol(b'{') => {
                    depth += 1;
                    self.advance();
                    continue;
                }
                _ if self.at_constant() => {
                    let value = self.constant()?;
                    let Some(bytes) = initial_bytes(value, element) else {
                        return Err(self.source.error(span, "this value does not fit the variable's type"));
                    };
                    variable.initial.extend_from_slice(&bytes[..(element as usize).min(8)]);
                }
                Kind::Name(_) if element == 8 => {
                    let name = self.initial_address()?;
                    let addend = self.offset()?;
                    variable.addresses.push((variable.initial.len(), name, addend));
                    variable.initial.extend_from_slice(&[0; 8]);
                }
                _ => return Err(self.expected("an initial value")),
            }
            if element > 8 {
                return Err(self.source.error(span, "initial values of 128 bits are not supported"));
            }
            while depth > 0 && self.accept(b'}') {
                depth -= 1;
            }
            if depth == 0 {
                return Ok(());
            }
            self.expect(b',')?;
        }
    }

    /// `name` or `generic(name)`.
    fn initial_address(&mut self) -> Result<Name<'a>, ParseError> {
        let name = self.name("a variable")?;
        if name.text == "generic" && self.accept(b'(') {
            let name = self.name("a variable")?;
            self.expect(b')')?;
            return Ok(name);
        }
        Ok(name)
    }

    fn entry(&mut self, module: &mut Module<'a>) -> Result<(), ParseError> {
        let name = self.name("a kernel name")?;
        let mut entry = Entry {
            name,
            parameters: Vec::new(),
            reqntid: None,
            cluster: None,
            maxntid: None,
            min_ctas: None,
            body: Body::default(),
        };
        if self.accept(b'(') && !self.accept(b')') {
            loop {
                let parameter = self.parameter()?;
                entry.parameters.push(parameter);
                if !self.accept(b',') {
                    break;
                }
            }
            self.expect(b')')?;
        }
        while let Kind::Dotted(directive) = self.kind() {
            let span = self.span();
            self.advance();
            match directive {
                "reqntid" => entry.reqntid = Some(self.dimensions()?),
                "reqnctapercluster" => entry.cluster = Some(self.dimensions()?),
                "explicitcluster" => {}
                "maxclusterrank" => {
                    self.integer("the largest number of blocks in a cluster")?;
                }
                "maxntid" => entry.maxntid = Some(self.dimensions()?),
                "minnctapersm" | "maxnctapersm" => {
                    let count = self.dimensions()?[0];
                    entry.min_ctas = (directive == "minnctapersm").then_some(count).or(entry.min_ctas);
                }
                "maxnreg" => drop(self.integer("a number of registers")?),
                "pragma" => {
                    self.at_pragma_text()?;
                }
                "noreturn" => {}
                _ => {
                    return Err(self
                        .source
                        .error(span, format!("the emulator does not know the directive `.{directive}`")));
                }
            }
        }
        self.body(&mut entry.body, module)?;
        module.entries.push(entry);
        Ok(())
    }

    pub(super) fn dimensions(&mut self) -> Result<[u32; 3], ParseError> {
        let mut sizes = [1; 3];
        for (i, size) in sizes.iter_mut().enumerate() {
            let span = self.span();
            let value = self.integer("a size")?;
            *size = u32::try_from(value)
                .map_err(|_| self.source.error(span, "this size does not fit in 32 bits"))?;
            if i == 2 || !self.accept(b',') {
                break;
            }
        }
        Ok(sizes)
    }

    /// `.param .u64 .ptr .global .align 4 name`, `.param .align 8 .b8 name[24]`.
    fn parameter(&mut self) -> Result<Parameter<'a>, ParseError> {
        if !self.accept_dotted("param") {
            return Err(self.expected("`.param`"));
        }
        let (mut size, mut align, mut pointer) = (None, None, false);
        let mut ty = "";
        while let Kind::Dotted(word) = self.kind() {
            let span = self.span();
            self.advance();
            match word {
                "align" => {
                    let value = self.alignment()?;
                    // The alignment after `.ptr` is that of what the pointer points to.
                    if !pointer {
                        align = Some(value);
                    }
                }
                "ptr" => pointer = true,
                "global" | "shared" | "const" | "local" if pointer => {}
                _ => match type_size(word) {
                    Some(bytes) => (size, ty) = (Some(bytes), word),
                    None => return Err(self.source.error(span, format!("`.{word}` is not a type"))),
                },
            }
        }
        let Some(element) = size else { return Err(self.expected("a type")) };
        let name = self.name("a parameter name")?;
        let mut size = element;
        let mut array = false;
        while self.accept(b'[') {
            let span = self.span();
            array = true;
            size = size.saturating_mul(self.integer("a number of elements")?);
            if size > 1 << 16 {
                return Err(self.source.error(span, "this parameter is larger than 64 KiB"));
            }
            self.expect(b']')?;
        }
        Ok(Parameter { name, ty, array, size, align: align.unwrap_or(element) })
    }

    fn skip_braces(&mut self) -> Result<(), ParseError> {
        let open = self.span();
        self.expect(b'{')?;
        let mut depth = 1usize;
        while depth > 0 {
            match self.kind() {
                Kind::Symbol(b'{') => depth += 1,
                Kind::Symbol(b'}') => depth -= 1,
                Kind::End => return Err(self.source.error(open, "this brace is never closed")),
                _ => {}
            }
            self.advance();
        }
        Ok(())
    }

    /// `.file 1 "path"`, with a time and a size at the end of some.
    fn file(&mut self, module: &mut Module<'a>) -> Result<(), ParseError> {
        self.advance();
        let number = self.integer("a file number")?;
        let Kind::Text(path) = self.kind() else { return Err(self.expected("a path")) };
        self.advance();
        while self.accept(b',') {
            self.integer("an integer")?;
        }
        module.files.push((number, path));
        Ok(())
    }

    /// `.loc file line column`, with `function_name label [+ offset], inlined_at file line column` behind some.
    pub(super) fn loc(&mut self) -> Result<Option<(u32, u32)>, ParseError> {
        self.advance();
        let file = self.integer("a file number")?;
        let line = self.integer("a line")?;
        self.integer("a column")?;
        while self.accept(b',') {
            match self.name("`function_name` or `inlined_at`")?.text {
                "function_name" => {
                    self.name("a label")?;
                    if self.accept(b'+') {
                        self.integer("an offset")?;
                    }
                }
                _ => {
                    self.integer("a file number")?;
                    self.integer("a line")?;
                    self.integer("a column")?;
                }
            }
        }
        // Line 0 is the compiler's way to say that it does not know.
        let known = line != 0 && file <= u64::from(u32::MAX) && line <= u64::from(u32::MAX);
        Ok(known.then_some((file as u32, line as u32)))
    }

    /// `.section .name { … }`: debug information.
    fn section(&mut self) -> Result<(), ParseError> {
        self.advance();
        self.dotted("a section name")?;
        self.skip_braces()
    }

    fn pragma(&mut self) -> Result<(), ParseError> {
        self.advance();
        self.at_pragma_text()?;
        Ok(())
    }

    pub(super) fn at_pragma_text(&mut self) -> Result<(), ParseError> {
        loop {
            let Kind::Text(_) = self.kind() else { return Err(self.expected("a string")) };
            self.advance();
            if !self.accept(b',') {
                return self.expect(b';');
            }
        }
    }
}
