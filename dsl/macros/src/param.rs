//! `#[derive(KernelParam)]`.

use proc_macro2::TokenStream;
use quote::quote;
use syn::{Data, DeriveInput, Error, Result};

pub(crate) fn expand(item: TokenStream) -> Result<TokenStream> {
    let input: DeriveInput = syn::parse2(item)?;
    let Data::Struct(data) = &input.data else {
        return Err(Error::new_spanned(&input.ident, "a kernel parameter is a struct"));
    };
    if !input.generics.params.is_empty() {
        return Err(Error::new_spanned(&input.generics, "a kernel parameter has no generic parameters"));
    }
    let fixed_layout =
        input.attrs.iter().filter(|attribute| attribute.path().is_ident("repr")).any(|attribute| {
            let mut fixed = false;
            // An unknown representation is the compiler's to report.
            let _ = attribute.parse_nested_meta(|meta| {
                fixed |= meta.path.is_ident("C") || meta.path.is_ident("transparent");
                Ok(())
            });
            fixed
        });
    if !fixed_layout {
        return Err(Error::new_spanned(
            &input.ident,
            "a kernel parameter needs #[repr(C)]: the host and the device must agree on its layout",
        ));
    }
    let name = &input.ident;
    let fields: Vec<_> = data.fields.iter().map(|field| &field.ty).collect();
    let members = data.fields.members();
    Ok(quote! {
        const _: () = {
            const fn is_kernel_param<T: ::warpsmith_dsl::launch::KernelParam>() {}
            #(is_kernel_param::<#fields>();)*
            assert!(
                size_of::<#name>() == 0 #(+ size_of::<#fields>())*,
                "a kernel parameter must have no padding: order its fields by size, or add a field"
            );
            #(assert!(
                ::core::mem::offset_of!(#name, #members)
                    .is_multiple_of(<#fields as ::warpsmith_dsl::launch::KernelParam>::PARAM_ALIGN),
                "a field of a kernel parameter must start at a multiple of its alignment as a parameter"
            );)*
        };
        // SAFETY: a fixed layout of fields that are kernel parameters, with no padding between them.
        unsafe impl ::warpsmith_dsl::launch::KernelParam for #name {
            const PARAM_ALIGN: usize = {
                let mut align = align_of::<#name>();
                #(
                    let field = <#fields as ::warpsmith_dsl::launch::KernelParam>::PARAM_ALIGN;
                    if field > align {
                        align = field;
                    }
                )*
                align
            };
        }
    })
}
