//! An epilogue that is written as a function: the struct that holds its operands, and what makes it an epilogue.

use proc_macro2::{Span, TokenStream};
use quote::{ToTokens as _, format_ident, quote};
use syn::ext::IdentExt as _;
use syn::spanned::Spanned as _;
use syn::{Attribute, Error, FnArg, Ident, ItemFn, Pat, Result, ReturnType, Type, Visibility};

/// Which elements of the output have the same number as parameter.
enum Of {
    /// Those of a row. The slice of the rows' numbers has elements of this type, or else of `f32`.
    Row(Option<Type>),
    /// Those of a column, likewise.
    Column(Option<Type>),
    /// All.
    All,
}

/// A parameter beside the sum.
struct Parameter {
    name: Ident,
    of: Of,
    of_type: Type,
}

/// What an epilogue is, for errors.
const RULES: &str = "an epilogue is a function of the sum, an f32, with parameters for its row (`#[row] scale: f32`) and its column \
                     (`#[column] bias: f32`), and then those that are the same for all elements";

/// A launch takes no more operands.
const MOST_PARAMETERS: usize = 8;

/// The struct's name, and the function with all that makes it an epilogue.
pub(crate) fn of_function(mut function: ItemFn) -> Result<(Ident, TokenStream)> {
    let signature = &mut function.sig;
    let refuse =
        |tokens: &dyn quote::ToTokens, what: &str| Err(Error::new_spanned(tokens.to_token_stream(), what));
    if !signature.generics.params.is_empty() {
        return refuse(&signature.generics, "an epilogue has no generic parameters");
    }
    if !matches!(signature.safety, syn::Safety::Default)
        || signature.asyncness.is_some()
        || signature.abi.is_some()
    {
        return refuse(&signature, "an epilogue is a safe function");
    }
    if !matches!(function.vis, Visibility::Public(_)) {
        return refuse(&signature.fn_token, "an epilogue is `pub`, as its kernels are");
    }
    if !matches!(&signature.output, ReturnType::Type(_, of_type) if is(of_type, "f32")) {
        return refuse(&signature, "an epilogue returns an f32");
    }
    let mut inputs = signature.inputs.iter_mut();
    match inputs.next().map(parameter).transpose()? {
        Some(Parameter { of: Of::All, of_type, .. }) if is(&of_type, "f32") => {}
        _ => return refuse(&signature.ident, RULES),
    }
    let parameters = inputs.map(parameter).collect::<Result<Vec<_>>>()?;
    if let Some(surplus) = parameters.get(MOST_PARAMETERS) {
        return refuse(&surplus.name, "an epilogue has at most 8 parameters beside the sum");
    }
    // Slices come first, so that the struct has no padding between its fields.
    let is_number = |parameter: &Parameter| matches!(parameter.of, Of::All);
    if let Some(first) = parameters.iter().position(is_number)
        && let Some(late) = parameters[first..].iter().find(|parameter| !is_number(parameter))
    {
        return refuse(&late.name, RULES);
    }
    function.attrs.push(syn::parse_quote!(#[inline(always)]));
    let Ok(mut name) = syn::parse_str::<Ident>(&camel_case(&function.sig.ident.to_string())) else {
        return refuse(
            &function.sig.ident,
            "an epilogue's name in camel case is that of the struct of its operands",
        );
    };
    name.set_span(function.sig.ident.span());
    let epilogue = epilogue(&name, &function, &parameters);
    Ok((name, quote!(#function #epilogue)))
}

/// A parameter, without the attribute that says what it is of.
fn parameter(input: &mut FnArg) -> Result<Parameter> {
    let FnArg::Typed(typed) = input else { return Err(Error::new(input.span(), RULES)) };
    let Pat::Ident(pattern) = &*typed.pat else {
        return Err(Error::new_spanned(&typed.pat, "a name is expected"));
    };
    let mut of = Of::All;
    for attribute in std::mem::take(&mut typed.attrs) {
        let is_row = attribute.path().is_ident("row");
        if !matches!(of, Of::All) || !is_row && !attribute.path().is_ident("column") {
            return Err(Error::new_spanned(&attribute, "`#[row]` or `#[column]` is expected, once"));
        }
        let elements = elements(&attribute)?;
        of = if is_row { Of::Row(elements) } else { Of::Column(elements) };
    }
    let (name, of_type) = (pattern.ident.clone(), (*typed.ty).clone());
    let known: &[&str] = if matches!(of, Of::All) { &["f32", "u32", "i32"] } else { &["f32"] };
    if !known.iter().any(|known| is(&of_type, known)) {
        return Err(Error::new_spanned(
            &of_type,
            format!("the type of this parameter is {}", known.join(", ")),
        ));
    }
    Ok(Parameter { name, of, of_type })
}

/// The type in `#[row(Bf16)]`.
fn elements(attribute: &Attribute) -> Result<Option<Type>> {
    match &attribute.meta {
        syn::Meta::Path(_) => Ok(None),
        syn::Meta::List(list) => list.parse_args().map(Some),
        syn::Meta::NameValue(value) => {
            Err(Error::new_spanned(value, "a type in parentheses is expected, or nothing"))
        }
    }
}

/// Whether a type is called that.
fn is(of_type: &Type, name: &str) -> bool {
    matches!(of_type, Type::Path(path) if path.path.is_ident(name))
}

/// `scaled_softplus` as `ScaledSoftplus`.
fn camel_case(name: &str) -> String {
    let words = name.trim_start_matches("r#").split('_');
    words
        .flat_map(|word| {
            word.chars()
                .enumerate()
                .map(|(at, letter)| if at == 0 { letter.to_ascii_uppercase() } else { letter })
        })
        .collect()
}

fn epilogue(name: &Ident, function: &ItemFn, parameters: &[Parameter]) -> TokenStream {
    let (called, visibility) = (&function.sig.ident, &function.vis);
    let names: Vec<&Ident> = parameters.iter().map(|parameter| &parameter.name).collect();
    let texts: Vec<String> = names.iter().map(|name| name.unraw().to_string()).collect();
    let types: Vec<TokenStream> = parameters
        .iter()
        .map(|Parameter { of, of_type, .. }| match of {
            Of::Row(elements) | Of::Column(elements) => {
                let elements = elements.as_ref().unwrap_or(of_type);
                quote!(::warpsmith_dsl::slice::GlobalSlice<#elements>)
            }
            Of::All => of_type.to_token_stream(),
        })
        .collect();
    // A parameter may be called like the function, or like one of the trait's.
    let value = |index: usize| format_ident!("value_{index}", span = Span::mixed_site());
    let of = |is_of: fn(&Of) -> bool| -> Vec<(Ident, &Ident)> {
        let parameters = parameters.iter().enumerate().filter(|(_, parameter)| is_of(&parameter.of));
        parameters.map(|(index, parameter)| (value(index), &parameter.name)).collect()
    };
    let values: Vec<Ident> = (0..parameters.len()).map(value).collect();
    let numbers = of(|of| matches!(of, Of::All)).len();
    // A parameter of a kernel is not empty, and has no padding behind an odd number of numbers.
    let is_padded = parameters.is_empty() || numbers < parameters.len() && !numbers.is_multiple_of(2);
    let (reserved, reserved_is) = match is_padded {
        true => (quote!(_reserved_for_alignment: u32,), quote!(_reserved_for_alignment: 0,)),
        false => (quote!(), quote!()),
    };
    let rows = of(|of| matches!(of, Of::Row(_)));
    let columns = of(|of| matches!(of, Of::Column(_)));
    let read = |parameters: &[(Ident, &Ident)], at: &str| {
        let at = format_ident!("{at}");
        parameters
            .iter()
            .map(|(_, name)| quote!(self.#name.get(#at as usize).map_or(0.0, ::warpsmith_dsl::float::Element::to_f32)))
            .collect::<Vec<_>>()
    };
    let (row_values, column_values) = (read(&rows, "row"), read(&columns, "column"));
    let f32s = |of: &[(Ident, &Ident)]| -> Vec<TokenStream> { of.iter().map(|_| quote!(f32)).collect() };
    let (row, column) = (nested(&f32s(&rows)), nested(&f32s(&columns)));
    let bound =
        |of: &[(Ident, &Ident)]| -> Vec<TokenStream> { of.iter().map(|(value, _)| quote!(#value)).collect() };
    let (row_names, column_names) = (nested(&bound(&rows)), nested(&bound(&columns)));
    let (row_values, column_values) = (nested(&row_values), nested(&column_values));
    let shared: Vec<TokenStream> =
        of(|of| matches!(of, Of::All)).iter().map(|(value, name)| quote!(let #value = self.#name;)).collect();
    let misfits = parameters.iter().zip(&texts).filter_map(|(Parameter { name, of, .. }, text)| {
        let (count, is_of_rows) = match of {
            Of::Row(_) => (quote!(rows), true),
            Of::Column(_) => (quote!(columns), false),
            Of::All => return None,
        };
        Some(quote! {
            if self.#name.len() != #count {
                return ::core::option::Option::Some(::warpsmith_dsl::operands::Misfit {
                    operand: #text, is_of_rows: #is_of_rows, expected: #count, actual: self.#name.len(),
                });
            }
        })
    });
    let sum = Ident::new("sum", Span::mixed_site());
    let doc = format!("What [`{called}`](fn@{called}) reads.");
    quote! {
        #[doc = #doc]
        #[derive(Clone, Copy, ::warpsmith_dsl::KernelParam)]
        #[repr(C)]
        #visibility struct #name {
            #(#names: #types,)*
            #reserved
        }

        impl ::warpsmith_dsl::operands::FieldOperands for #name {
            type Operands = (#(#types,)*);
            const NAMES: &'static [&'static str] = &[#(#texts),*];

            #[allow(clippy::unused_unit)]
            fn from_operands((#(#values,)*): Self::Operands) -> Self {
                Self { #(#names: #values,)* #reserved_is }
            }

            #[allow(unused_variables)]
            fn misfit(&self, rows: usize, columns: usize) -> ::core::option::Option<::warpsmith_dsl::operands::Misfit> {
                #(#misfits)*
                ::core::option::Option::None
            }
        }

        #[allow(unused_variables, clippy::unused_unit)]
        impl ::warpsmith_dsl::gemm::product::ProductEpilogue for #name {
            type Row = #row;
            type Column = #column;

            #[inline(always)]
            fn row(&self, row: u32) -> #row {
                #row_values
            }

            #[inline(always)]
            fn column(&self, column: u32) -> #column {
                #column_values
            }

            #[inline(always)]
            fn apply(&self, #row_names: #row, #column_names: #column, #sum: f32) -> f32 {
                #(#shared)*
                #called(#sum #(, #values)*)
            }
        }
    }
}

/// Nothing as `()`, one as itself, and several as pairs of pairs, which columns are handed on as.
fn nested(parts: &[TokenStream]) -> TokenStream {
    match parts {
        [] => quote!(()),
        [one] => one.clone(),
        [rest @ .., last] => {
            let rest = nested(rest);
            quote!((#rest, #last))
        }
    }
}
