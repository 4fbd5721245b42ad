//! `#[product_kernels]`.

use proc_macro2::TokenStream;
use quote::{format_ident, quote};
use syn::{Error, Ident, ItemFn, Result};

use crate::epilogue::of_function;
use crate::function::{Types, operands, types};

pub(crate) fn expand(attribute: TokenStream, item: TokenStream) -> Result<TokenStream> {
    let products = types(attribute, "#[product_kernels] needs a product: `name: F16 -> f32`")?;
    let (name, epilogue) = match syn::parse2::<ItemFn>(item.clone()) {
        Ok(function) => of_function(function)?,
        Err(_) => operands(item.clone(), "an epilogue")?,
    };
    if let Some(Types { name: same, .. }) = products.iter().find(|product| product.name == name) {
        return Err(Error::new_spanned(
            same,
            "the struct of the operands has this name: call the kernels otherwise",
        ));
    }
    let kernels =
        products.iter().map(|product| kernels(&name, product, product.source("product_kernels", &item)));
    Ok(quote! {
        #epilogue

        #(#kernels)*
    })
}

/// The kernels of one product, and the type that names them all.
fn kernels(epilogue: &Ident, Types { name, input, output }: &Types, source: u64) -> TokenStream {
    let module = format_ident!("{name}_kernels");
    let entry = |variant: &str| format_ident!("{name}_{variant}");
    let [t128x128, t128x64, t64x64, t16x64] = ["128x128", "128x64", "64x64", "16x64"].map(entry);
    let [pingpong, cooperative_256, cooperative_192] =
        ["pingpong_128x128", "cooperative_128x256", "cooperative_128x192"].map(entry);
    let [skinny, skinny_split4, sums] = ["skinny_16x64", "skinny_16x64_split4", "sums"].map(entry);
    let text = name.to_string();
    let doc = format!("The kernels of products with [`{epilogue}`]: what the host names.");
    quote! {
        #[doc(hidden)]
        pub mod #module {
            use ::warpsmith_dsl::gemm::product::{
                self, HopperCooperative128x192, HopperCooperative128x256, HopperParams,
                HopperPingPong128x128, LinearParams, PerElement, SkinnyParams, Skinny16x64, Skinny16x64Split4,
                SumsParams, SUMS_THREADS, Tile16x64, Tile64x64, Tile128x64, Tile128x128,
            };
            use ::warpsmith_dsl::gemm::parts::Parts;
            use ::warpsmith_dsl::gemm::{PersistentTile, SplitKTile, TileShape};
            use ::warpsmith_dsl::launch::{Global, GlobalMut, TensorMap};
            use ::warpsmith_dsl::ptx::Wgmma;
            use ::warpsmith_dsl::tile::{Access, Aligned, Words};
            #[allow(unused_imports)]
            use super::*;

            const _: () = assert!(
                ::core::mem::size_of::<#input>() == 2,
                "the operands of a product with an epilogue of one's own are of type F16 or Bf16"
            );

            #[::warpsmith_dsl::kernel(
                source = #source,
                block = [S::THREADS, 1, 1],
                shared = S::SHARED_BYTES,
                instances = [
                    #t128x128 = <Tile128x128, Aligned>,
                    #t128x64 = <Tile128x64, Aligned>,
                    #t64x64 = <Tile64x64, Words>,
                    #t16x64 = <Tile16x64, Words>,
                ],
            )]
            pub unsafe fn portable<S: TileShape, A: Access>(
                x: Global<#input>,
                w: Global<#input>,
                y: GlobalMut<#output>,
                epilogue: super::#epilogue,
                parts: Parts,
                p: LinearParams,
            ) {
                // SAFETY: the caller's promise.
                unsafe {
                    product::portable::<#input, #output, S, A, _>(x, w, y, |_| PerElement(epilogue), parts, p)
                }
            }

            #[::warpsmith_dsl::kernel(
                source = #source,
                block = [S::THREADS, 1, 1],
                cluster = [S::CLUSTER, 1, 1],
                min_blocks = S::MIN_BLOCKS,
                shared = S::SHARED_BYTES,
                instances = [
                    #[cfg(warpsmith_arch = "sm_90a")]
                    #pingpong = <HopperPingPong128x128>,
                    #[cfg(warpsmith_arch = "sm_90a")]
                    #cooperative_256 = <HopperCooperative128x256>,
                    #[cfg(warpsmith_arch = "sm_90a")]
                    #cooperative_192 = <HopperCooperative128x192>,
                ],
            )]
            pub unsafe fn persistent<S: PersistentTile>(
                x: &TensorMap,
                w: &TensorMap,
                y_boxes: &TensorMap,
                y: GlobalMut<#output>,
                epilogue: super::#epilogue,
                p: HopperParams,
            ) where
                #input: Wgmma<S::Fragment>,
            {
                // SAFETY: the caller's promise.
                unsafe {
                    product::persistent::<#input, #output, S, _>(x, w, y_boxes, y, PerElement(epilogue), p)
                }
            }

            #[::warpsmith_dsl::kernel(
                source = #source,
                block = [S::THREADS, 1, 1],
                cluster = [S::SPLIT, 1, 1],
                min_blocks = S::MIN_BLOCKS,
                shared = S::SHARED_BYTES,
                instances = [
                    #[cfg(warpsmith_arch = "sm_90a")]
                    #skinny = <Skinny16x64>,
                    #[cfg(warpsmith_arch = "sm_90a")]
                    #skinny_split4 = <Skinny16x64Split4>,
                ],
            )]
            pub unsafe fn few_rows<S: SplitKTile>(
                x: &TensorMap,
                w: &TensorMap,
                y: GlobalMut<#output>,
                epilogue: super::#epilogue,
                p: SkinnyParams,
            ) where
                #input: Wgmma<S::Accumulators>,
            {
                // SAFETY: the caller's promise.
                unsafe { product::few_rows::<#input, #output, S, _>(x, w, y, PerElement(epilogue), p) }
            }

            #[::warpsmith_dsl::kernel(
                source = #source,
                block = [SUMS_THREADS, 1, 1],
                instances = [
                    #[cfg(warpsmith_arch = "sm_90a")]
                    #sums = <>,
                ],
            )]
            pub unsafe fn sums(
                parts: Global<f32>,
                y: GlobalMut<#output>,
                epilogue: super::#epilogue,
                p: SumsParams,
            ) {
                // SAFETY: the caller's promise.
                unsafe { product::add_parts::<#output, _>(parts, y, |_| PerElement(epilogue), p) }
            }
        }

        #[doc = #doc]
        #[cfg(not(target_arch = "nvptx64"))]
        #[allow(non_camel_case_types)]
        pub enum #name {}

        // SAFETY: the kernels above have the bodies, tiles and types that the trait asks for.
        #[cfg(not(target_arch = "nvptx64"))]
        unsafe impl ::warpsmith_dsl::gemm::product::ProductKernels for #name {
            const NAME: &'static str = #text;
            type Input = #input;
            type Output = #output;
            type Epilogue = #epilogue;
            type T128x128 = #module::portable<
                ::warpsmith_dsl::gemm::product::Tile128x128, ::warpsmith_dsl::tile::Aligned>;
            type T128x64 = #module::portable<
                ::warpsmith_dsl::gemm::product::Tile128x64, ::warpsmith_dsl::tile::Aligned>;
            type T64x64 = #module::portable<
                ::warpsmith_dsl::gemm::product::Tile64x64, ::warpsmith_dsl::tile::Words>;
            type T16x64 = #module::portable<
                ::warpsmith_dsl::gemm::product::Tile16x64, ::warpsmith_dsl::tile::Words>;
            type PingPong128x128 = #module::persistent<::warpsmith_dsl::gemm::product::HopperPingPong128x128>;
            type Cooperative128x256 = #module::persistent<::warpsmith_dsl::gemm::product::HopperCooperative128x256>;
            type Cooperative128x192 = #module::persistent<::warpsmith_dsl::gemm::product::HopperCooperative128x192>;
            type Skinny16x64 = #module::few_rows<::warpsmith_dsl::gemm::product::Skinny16x64>;
            type Skinny16x64Split4 = #module::few_rows<::warpsmith_dsl::gemm::product::Skinny16x64Split4>;
            type Sums = #module::sums;
        }
    }
}
