//! `#[row_kernels]`.

use proc_macro2::TokenStream;
use quote::{format_ident, quote};
use syn::{Ident, Result};

use crate::function::{Types, operands, types};

pub(crate) fn expand(attribute: TokenStream, item: TokenStream) -> Result<TokenStream> {
    let all = types(attribute, "#[row_kernels] needs the types of rows: `name: F16 -> f32`")?;
    let (name, function) = operands(item.clone(), "a function of rows")?;
    let kernels = all.iter().map(|types| kernels(&name, types, types.source("row_kernels", &item)));
    Ok(quote! {
        #function

        #(#kernels)*
    })
}

/// The kernels of some types, and the type that names them all.
fn kernels(function: &Ident, Types { name, input, output }: &Types, source: u64) -> TokenStream {
    let module = format_ident!("{name}_kernels");
    let text = name.to_string();
    let doc = format!("The kernels of [`{function}`] for rows of some types: what the host names.");
    let variants = [
        ("block", true, false),
        ("any", false, false),
        ("cluster", true, true),
        ("cluster_any", false, true),
    ];
    let kernels = variants.map(|(variant, is_vector, is_cluster)| {
        let (kernel, entry) = (format_ident!("{variant}"), format_ident!("{name}_{variant}"));
        // No GPU before has clusters.
        let condition = is_cluster.then(|| quote!(#[cfg(warpsmith_arch = "sm_90a")]));
        let shares = quote!({ rows::per_chunk::<#input>() }, { rows::chunks_of::<#input>() });
        quote! {
            #[::warpsmith_dsl::kernel(
                source = #source,
                block = [rows::THREADS, 1, 1],
                dependent_launch = true,
                min_blocks = 2,
                shared = rows::SHARED_BYTES,
                instances = [
                    #condition
                    #entry = <>,
                ],
            )]
            pub unsafe fn #kernel(
                x: Global<#input>,
                y: GlobalMut<#output>,
                f: super::#function,
                p: rows::RowFunctionParams,
            ) {
                // SAFETY: the caller's promise.
                unsafe { rows::apply::<#input, #output, _, #shares, #is_vector, #is_cluster>(x, y, &f, p) }
            }
        }
    });
    quote! {
        #[doc(hidden)]
        pub mod #module {
            use ::warpsmith_dsl::launch::{Global, GlobalMut};
            use ::warpsmith_dsl::rows;
            #[allow(unused_imports)]
            use super::*;

            #(#kernels)*
        }

        #[doc = #doc]
        #[cfg(not(target_arch = "nvptx64"))]
        #[allow(non_camel_case_types)]
        pub enum #name {}

        // SAFETY: the kernels above have the body, types and chunks that the trait asks for.
        #[cfg(not(target_arch = "nvptx64"))]
        unsafe impl ::warpsmith_dsl::rows::RowKernels for #name {
            const NAME: &'static str = #text;
            type Input = #input;
            type Output = #output;
            type Function = #function;
            type Block = #module::block;
            type BlockAny = #module::any;
            type Cluster = #module::cluster;
            type ClusterAny = #module::cluster_any;
        }
    }
}
