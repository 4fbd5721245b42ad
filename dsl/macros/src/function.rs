//! What `#[product_kernels]` and `#[row_kernels]` share: the types of the kernels, and the struct that is a function of a program's own.

use proc_macro2::TokenStream;
use quote::{format_ident, quote};
use syn::parse::{Parse, ParseStream};
use syn::punctuated::Punctuated;
use syn::{Error, Fields, Ident, ItemStruct, Result, Token, Type};

use crate::source::fingerprint;

/// `name: Input -> Output`: the kernels of some types.
pub(crate) struct Types {
    pub(crate) name: Ident,
    pub(crate) input: Type,
    pub(crate) output: Type,
}

impl Parse for Types {
    fn parse(input: ParseStream) -> Result<Self> {
        let name = input.parse()?;
        input.parse::<Token![:]>()?;
        let of_operands = input.parse()?;
        input.parse::<Token![->]>()?;
        Ok(Self { name, input: of_operands, output: input.parse()? })
    }
}

/// What stands between the parentheses of an attribute, `missing` being the error if that is nothing.
pub(crate) fn types(attribute: TokenStream, missing: &str) -> Result<Vec<Types>> {
    let parse = |input: ParseStream| {
        let list = Punctuated::<Types, Token![,]>::parse_terminated(input)?;
        if list.is_empty() { Err(input.error(missing)) } else { Ok(list.into_iter().collect()) }
    };
    syn::parse::Parser::parse2(parse, attribute)
}

impl Types {
    /// The fingerprint of the kernels that `attribute` makes of the struct `item` for these types: a launch without `unsafe` asks for it. What a struct's
    /// functions do is safe code, and not in it.
    pub(crate) fn source(&self, attribute: &str, item: &TokenStream) -> u64 {
        let Self { name, input, output } = self;
        fingerprint([quote!(#attribute #name: #input -> #output), item.clone()])
    }
}

/// The struct as a kernel parameter that a launch makes of its fields, and its name. `what` it is stands in errors.
pub(crate) fn operands(item: TokenStream, what: &str) -> Result<(Ident, TokenStream)> {
    let mut function: ItemStruct = syn::parse2(item)?;
    if !function.generics.params.is_empty() {
        let message = format!("{what} has no generic parameters");
        return Err(Error::new_spanned(&function.generics, message));
    }
    let is_empty = function.fields.is_empty();
    if is_empty {
        // No parameter of a kernel is empty.
        function.fields = Fields::Named(syn::parse_quote!({
            /// What a parameter of a kernel has at least.
            _reserved: u32
        }));
        function.semi_token = None;
    }
    let name = &function.ident;
    let types: Vec<&Type> = function.fields.iter().filter(|_| !is_empty).map(|field| &field.ty).collect();
    let members: Vec<syn::Member> = function.fields.members().collect();
    let values: Vec<Ident> = (0..types.len()).map(|index| format_ident!("field_{index}")).collect();
    let names: Vec<String> =
        members.iter().take(types.len()).map(|member| quote!(#member).to_string()).collect();
    let made = if is_empty { quote!(Self { _reserved: 0 }) } else { quote!(Self { #(#members: #values),* }) };
    let tokens = quote! {
        #[derive(Clone, Copy, ::warpsmith_dsl::KernelParam)]
        #[repr(C)]
        #function

        impl ::warpsmith_dsl::operands::FieldOperands for #name {
            type Operands = (#(#types,)*);
            const NAMES: &'static [&'static str] = &[#(#names),*];

            #[allow(clippy::unused_unit)]
            fn from_operands((#(#values,)*): Self::Operands) -> Self {
                #made
            }
        }
    };
    Ok((name.clone(), tokens))
}
