//! `#[kernel]`.

use proc_macro2::{Span, TokenStream};
use quote::{ToTokens as _, format_ident, quote};
use syn::parse::{Parse, ParseStream};
use syn::punctuated::Punctuated;
use syn::{
    AngleBracketedGenericArguments, Error, Expr, ExprArray, FnArg, GenericArgument, GenericParam, Ident,
    ItemFn, Pat, Result, ReturnType, Safety, Token, Type, bracketed,
};

use crate::source::fingerprint;

/// One line of `instances`: `name = <arguments>`, with attributes for the entry, such as `#[cfg(…)]`.
struct Instance {
    attributes: Vec<syn::Attribute>,
    name: Ident,
    arguments: Vec<GenericArgument>,
}

impl Parse for Instance {
    fn parse(input: ParseStream) -> Result<Self> {
        let attributes = input.call(syn::Attribute::parse_outer)?;
        let name = input.parse()?;
        input.parse::<Token![=]>()?;
        let arguments: AngleBracketedGenericArguments = input.parse()?;
        Ok(Self { attributes, name, arguments: arguments.args.into_iter().collect() })
    }
}

/// What stands between the parentheses of the attribute.
struct Attribute {
    /// None for a kernel beside its host program, whose file is its family.
    family: Option<Ident>,
    block: [Expr; 3],
    cluster: Option<[Expr; 3]>,
    min_blocks: Expr,
    shared: Expr,
    /// Whether it begins before launches before it have ended, and waits for them.
    dependent_launch: bool,
    /// The fingerprint of what the function was made of, if another attribute has made it.
    source: Option<u64>,
    instances: Option<Vec<Instance>>,
}

impl Parse for Attribute {
    fn parse(input: ParseStream) -> Result<Self> {
        let (mut family, mut block, mut cluster, mut instances) = (None, None, None, None);
        let (mut source, mut dependent_launch) = (None, false);
        let (mut min_blocks, mut shared): (Expr, Expr) = (syn::parse_quote!(1), syn::parse_quote!(0));
        while !input.is_empty() {
            let key: Ident = input.parse()?;
            input.parse::<Token![=]>()?;
            match key.to_string().as_str() {
                "family" => family = Some(input.parse()?),
                "block" => block = Some(extents(input, "`block` takes the number of threads")?),
                "cluster" => cluster = Some(extents(input, "`cluster` takes the number of blocks")?),
                "min_blocks" => min_blocks = input.parse()?,
                "shared" => shared = input.parse()?,
                "dependent_launch" => dependent_launch = input.parse::<syn::LitBool>()?.value,
                "source" => source = Some(input.parse::<syn::LitInt>()?.base10_parse()?),
                "instances" => {
                    let content;
                    bracketed!(content in input);
                    let list = Punctuated::<Instance, Token![,]>::parse_terminated(&content)?;
                    instances = Some(list.into_iter().collect());
                }
                _ => {
                    return Err(Error::new(
                        key.span(),
                        "expected `family`, `block`, `cluster`, `min_blocks`, `shared`, `dependent_launch` or `instances`",
                    ));
                }
            }
            if !input.is_empty() {
                input.parse::<Token![,]>()?;
            }
        }
        let missing = |key| Error::new(Span::call_site(), format!("#[kernel] needs `{key} = …`"));
        Ok(Self {
            family,
            block: block.ok_or_else(|| missing("block"))?,
            cluster,
            min_blocks,
            shared,
            dependent_launch,
            source,
            instances,
        })
    }
}

/// An array of three expressions.
fn extents(input: ParseStream, takes: &str) -> Result<[Expr; 3]> {
    let array: ExprArray = input.parse()?;
    let extents: Vec<Expr> = array.elems.iter().cloned().collect();
    extents.try_into().map_err(|_| Error::new_spanned(&array, format!("{takes} along x, y and z: [x, y, z]")))
}

/// One parameter of the kernel.
struct Parameter {
    name: Ident,
    /// The type that a launch passes by value.
    ty: Type,
    /// Whether the kernel takes a reference to it, in the place where the launch put it.
    by_reference: bool,
}

/// The function's parameters.
fn parameters(function: &ItemFn) -> Result<Vec<Parameter>> {
    let mut parameters = Vec::new();
    for input in &function.sig.inputs {
        let FnArg::Typed(typed) = input else {
            return Err(Error::new_spanned(input, "a kernel has no `self`"));
        };
        let Pat::Ident(name) = &*typed.pat else {
            return Err(Error::new_spanned(&typed.pat, "a kernel's parameters are plain names"));
        };
        let (ty, by_reference) = match &*typed.ty {
            Type::Reference(reference) if reference.mutability.is_some() || reference.lifetime.is_some() => {
                return Err(Error::new_spanned(reference, "a kernel takes a parameter by `&` or by value"));
            }
            Type::Reference(reference) => ((*reference.elem).clone(), true),
            ty => (ty.clone(), false),
        };
        parameters.push(Parameter { name: name.ident.clone(), ty, by_reference });
    }
    Ok(parameters)
}

/// The instances: those listed, or the function itself if it is not generic.
fn instances(listed: Option<Vec<Instance>>, function: &ItemFn) -> Result<Vec<Instance>> {
    let parameters = &function.sig.generics.params;
    let Some(listed) = listed else {
        if parameters.is_empty() {
            return Ok(vec![Instance {
                attributes: Vec::new(),
                name: function.sig.ident.clone(),
                arguments: Vec::new(),
            }]);
        }
        return Err(Error::new_spanned(
            parameters,
            "a generic kernel lists its instances: `instances = [name = <…>, …]`",
        ));
    };
    for instance in &listed {
        if instance.arguments.len() != parameters.len() {
            return Err(Error::new(
                instance.name.span(),
                format!(
                    "instance `{}` has {} generic arguments, the kernel has {}",
                    instance.name,
                    instance.arguments.len(),
                    parameters.len()
                ),
            ));
        }
    }
    Ok(listed)
}

/// Binds the kernel's generic parameters to the instance's arguments, by name: the signature and the attribute's values
/// then mean the instance without being rewritten.
fn bindings(function: &ItemFn, instance: &Instance) -> Result<TokenStream> {
    let mut bound = TokenStream::new();
    for (parameter, argument) in function.sig.generics.params.iter().zip(&instance.arguments) {
        bound.extend(match parameter {
            GenericParam::Type(parameter) => {
                let name = &parameter.ident;
                quote! { #[allow(dead_code)] type #name = #argument; }
            }
            GenericParam::Const(parameter) => {
                let (name, ty) = (&parameter.ident, &parameter.ty);
                quote! { #[allow(dead_code)] const #name: #ty = #argument; }
            }
            GenericParam::Lifetime(lifetime) => {
                return Err(Error::new_spanned(lifetime, "a kernel has no lifetime parameters"));
            }
        });
    }
    Ok(bound)
}

/// Makes of a parameter of the entry `entry` a reference to it where it stands. (A reference that the compiler makes would be
/// to a copy in local memory.)
fn in_place(parameter: &Parameter, index: usize, entry: &str) -> TokenStream {
    let Parameter { name, ty, .. } = parameter;
    let address = format!("mov.b64 {{0}}, {entry}_param_{index};");
    let align = format!("// warpsmith.param_align {index}, {{}}");
    quote! {
        let #name = {
            core::arch::asm!(
                #align, const <#ty as ::warpsmith_dsl::launch::KernelParam>::PARAM_ALIGN,
                options(nomem, nostack, preserves_flags),
            );
            let address: *const #ty;
            core::arch::asm!(
                #address, "cvta.param.u64 {0}, {0};", out(reg64) address,
                options(pure, nomem, nostack, preserves_flags),
            );
            &*address
        };
    }
}

/// Gives a safe function a parameter that only the entry has an argument for: what it may rely on, whole blocks of the stated size, is
/// there in a kernel, and not where another kernel calls it. No name stands for it, so that the function cannot hand it on.
fn only_for_entries(function: &mut ItemFn) {
    /// The most that clippy takes.
    const PARAMETERS: usize = 7;
    if function.sig.inputs.len() == PARAMETERS {
        function.attrs.push(syn::parse_quote!(#[allow(clippy::too_many_arguments)]));
    }
    function.sig.inputs.insert(0, syn::parse_quote!(_: ::warpsmith_dsl::launch::EntryToken));
}

pub(crate) fn expand(attribute: TokenStream, item: TokenStream) -> Result<TokenStream> {
    let of_attribute = attribute.clone();
    let Attribute {
        family,
        block: [x, y, z],
        cluster,
        min_blocks,
        shared,
        dependent_launch,
        source: of_other,
        instances: listed,
    } = syn::parse2(attribute)?;
    let mut function: ItemFn = syn::parse2(item)?;
    let is_safe = !matches!(function.sig.safety, Safety::Unsafe(_));
    if is_safe && of_other.is_some() {
        let message = "`source` is for functions that are `unsafe`: that of others is their own";
        return Err(Error::new_spanned(&function.sig, message));
    }
    if let ReturnType::Type(_, ty) = &function.sig.output {
        return Err(Error::new_spanned(ty, "a kernel returns nothing"));
    }
    let parameters = parameters(&function)?;
    let (names, types): (Vec<_>, Vec<_>) =
        parameters.iter().map(|parameter| (&parameter.name, &parameter.ty)).unzip();
    // What the kernel sees in place is not used as a value.
    let entry_names =
        parameters.iter().map(
            |Parameter { name, by_reference, .. }| {
                if *by_reference { format_ident!("_{name}") } else { name.clone() }
            },
        );
    let entry_names: Vec<Ident> = entry_names.collect();
    let listed = instances(listed, &function)?;
    let kernel = function.sig.ident.clone();
    let visibility = function.vis.clone();
    let source = of_other.or_else(|| {
        is_safe.then(|| {
            fingerprint([of_attribute, function.sig.to_token_stream(), function.block.to_token_stream()])
        })
    });
    let token = is_safe.then(|| {
        only_for_entries(&mut function);
        quote! { ::warpsmith_dsl::launch::EntryToken::new(), }
    });
    function.attrs.push(syn::parse_quote!(#[inline(always)]));
    function.attrs.push(syn::parse_quote!(#[cfg_attr(not(target_arch = "nvptx64"), allow(dead_code))]));

    let cluster_directives = cluster.as_ref().map(|[x, y, z]| {
        quote! {
            if (#x) * (#y) * (#z) > 1 {
                core::arch::asm!(
                    "// warpsmith.directive .explicitcluster",
                    "// warpsmith.directive .reqnctapercluster {}, {}, {}", const #x, const #y, const #z,
                    options(nomem, nostack, preserves_flags),
                );
            }
        }
    });
    let [cluster_x, cluster_y, cluster_z] =
        cluster.unwrap_or_else(|| std::array::from_fn(|_| syn::parse_quote!(1)));

    let mut expanded = quote! { #function };
    let mut declarations = Vec::new();
    for instance in &listed {
        let bound = bindings(&function, instance)?;
        let Instance { attributes, name, arguments } = instance;
        let name_text = name.to_string();
        let family_text = family.as_ref().map(Ident::to_string).unwrap_or_default();
        let family_mark = family.as_ref().map(|_| {
            let mark = format!("// warpsmith.family {family_text}");
            quote! { core::arch::asm!(#mark, options(nomem, nostack, preserves_flags),); }
        });
        let source_mark = source.map(|source| {
            let mark = format!("// warpsmith.source {source:#018x}");
            quote! { core::arch::asm!(#mark, options(nomem, nostack, preserves_flags),); }
        });
        let source_value = match source {
            Some(source) => quote! { ::core::option::Option::Some(#source) },
            None => quote! { ::core::option::Option::None },
        };
        let safe = is_safe.then(|| {
            quote! {
                // SAFETY: the function was written as no `unsafe fn`: it asks nothing of its launch but arguments that are what their types say.
                unsafe impl ::warpsmith_dsl::launch::SafeKernel for #kernel<#(#arguments),*> {}
            }
        });
        let references = parameters.iter().enumerate().filter(|(_, parameter)| parameter.by_reference);
        let references: TokenStream =
            references.map(|(index, parameter)| in_place(parameter, index, &name_text)).collect();
        let parameter_names: Vec<String> = names.iter().map(ToString::to_string).collect();
        let wait = dependent_launch.then(|| {
            quote! {
                #[allow(unexpected_cfgs)]
                {
                    #[cfg(warpsmith_dependent_launches)]
                    ::warpsmith_dsl::grid::wait_before_next_launch();
                }
            }
        });
        expanded.extend(quote! {
            #[cfg(target_arch = "nvptx64")]
            #(#attributes)*
            const _: () = {
                #bound
                // A name of its own: the kernel may be called what the entry is called.
                #[unsafe(export_name = #name_text)]
                unsafe extern "ptx-kernel" fn __warpsmith_entry(#(#entry_names: #types),*) {
                    // SAFETY: comments, which the builder turns into directives; then the kernel's own contract.
                    unsafe {
                        #family_mark
                        #source_mark
                        core::arch::asm!(
                            "// warpsmith.directive .reqntid {}, {}, {}", const #x, const #y, const #z,
                            options(nomem, nostack, preserves_flags),
                        );
                        core::arch::asm!(
                            "// warpsmith.directive .minnctapersm {}", const #min_blocks,
                            options(nomem, nostack, preserves_flags),
                        );
                        core::arch::asm!(
                            "// warpsmith.shared_bytes {}", const #shared,
                            options(nomem, nostack, preserves_flags),
                        );
                        #cluster_directives
                        #wait
                        #references
                        #kernel::<#(#arguments),*>(#token #(#names),*)
                    }
                }
            };

            #[cfg(not(target_arch = "nvptx64"))]
            const _: () = {
                #bound
                // SAFETY: the entry and its arguments are written from one signature.
                unsafe impl ::warpsmith_dsl::launch::Kernel for #kernel<#(#arguments),*> {
                    type Args = (#(#types,)*);
                    const DECLARATION: ::warpsmith_dsl::launch::Declaration = ::warpsmith_dsl::launch::Declaration {
                        name: #name_text,
                        family: #family_text,
                        block: [#x, #y, #z],
                        cluster: [#cluster_x, #cluster_y, #cluster_z],
                        min_blocks_per_sm: #min_blocks,
                        shared_bytes: #shared,
                        params: &[#(#parameter_names),*],
                        source: #source_value,
                    };
                }

                #safe
            };
        });
        declarations.push(quote! {
            <#kernel<#(#arguments),*> as ::warpsmith_dsl::launch::Kernel>::DECLARATION
        });
    }

    let parameters = &function.sig.generics.params;
    let plain: Vec<TokenStream> = parameters
        .iter()
        .map(|parameter| match parameter {
            GenericParam::Const(parameter) => {
                let (name, ty) = (&parameter.ident, &parameter.ty);
                quote! { const #name: #ty }
            }
            GenericParam::Type(parameter) => {
                let name = &parameter.ident;
                quote! { #name }
            }
            GenericParam::Lifetime(lifetime) => quote! { #lifetime },
        })
        .collect();
    let type_names = parameters.iter().filter_map(|parameter| match parameter {
        GenericParam::Type(parameter) => Some(&parameter.ident),
        _ => None,
    });
    let type_doc = format!("The kernel [`{kernel}`](fn@{kernel}) as a type: what a launch names.");
    let instances_doc = format!("The declarations of all instances of [`{kernel}`](fn@{kernel}).");
    let instances_name = format_ident!("{}_INSTANCES", kernel.to_string().to_uppercase());
    expanded.extend(quote! {
        #[cfg(not(target_arch = "nvptx64"))]
        #[doc = #type_doc]
        #[allow(non_camel_case_types)]
        #visibility struct #kernel<#(#plain),*> {
            _instance: ::core::marker::PhantomData<(#(fn() -> #type_names,)*)>,
        }

        #[cfg(not(target_arch = "nvptx64"))]
        #[doc = #instances_doc]
        #[allow(dead_code)]
        #visibility static #instances_name: &[::warpsmith_dsl::launch::Declaration] = &[#(#declarations),*];
    });
    Ok(expanded)
}
