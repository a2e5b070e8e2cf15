//! Derives `ReplicatedData` for structs of replicated types.

use proc_macro2::TokenStream as Tokens;
use quote::{format_ident, quote};
use syn::{Data, DeriveInput, Fields, Ident, Type};

use crate::attributes::Attributes;

pub(crate) fn derive(input: &DeriveInput) -> syn::Result<Tokens> {
    let Data::Struct(data) = &input.data else {
        return Err(syn::Error::new_spanned(&input.ident, "only a struct of replicated types is one"));
    };
    let Fields::Named(fields) = &data.fields else {
        return Err(syn::Error::new_spanned(&input.ident, "its fields need names"));
    };
    if !input.generics.params.is_empty() {
        return Err(syn::Error::new_spanned(&input.generics, "it may have no parameters"));
    }
    let names: Vec<&Ident> = fields.named.iter().filter_map(|field| field.ident.as_ref()).collect();
    let types: Vec<&Type> = fields.named.iter().map(|field| &field.ty).collect();
    let attributes = Attributes::of(input)?;
    let delta = delta_type(input, &attributes.krate, &names, &types);
    let data = replicated_data(input, &attributes, &names, &types);
    let pruning = pruning(&input.ident, &attributes.krate, &names, &types);
    Ok(quote!(#delta #data #pruning))
}

fn delta_name(input: &DeriveInput) -> Ident {
    format_ident!("{}Delta", input.ident)
}

fn delta_type(input: &DeriveInput, krate: &Tokens, names: &[&Ident], types: &[&Type]) -> Tokens {
    let (visibility, name) = (&input.vis, delta_name(input));
    let doc = format!("What one update of a [`{}`] changed; deltas of the fields that it touched.", input.ident);
    quote! {
        #[doc = #doc]
        #[derive(Clone, Debug, PartialEq)]
        #visibility struct #name {
            #(#names: ::core::option::Option<<#types as #krate::ReplicatedData>::Delta>,)*
        }
    }
}

fn replicated_data(input: &DeriveInput, attributes: &Attributes, names: &[&Ident], types: &[&Type]) -> Tokens {
    let (krate, tag, name, delta) = (&attributes.krate, attributes.type_tag(input), &input.ident, delta_name(input));
    let indexes: Vec<u16> = (0..).take(names.len()).collect();
    quote! {
        impl #krate::ReplicatedData for #name {
            const TAG: #krate::TypeTag = #tag;
            const CAUSAL: bool = false #(|| <#types as #krate::ReplicatedData>::CAUSAL)*;
            type Delta = #delta;

            fn zero() -> Self {
                Self { #(#names: <#types as #krate::ReplicatedData>::zero(),)* }
            }

            fn merge(&mut self, other: &Self) -> ::core::result::Result<#krate::Grew, #krate::MergeError> {
                let (mut joined, mut grew) = (self.clone(), false);
                #(grew |= #krate::ReplicatedData::merge(&mut joined.#names, &other.#names)?.grew();)*
                *self = joined;
                Ok(grew.into())
            }

            fn merge_delta(&mut self, delta: &#delta) -> ::core::result::Result<#krate::Grew, #krate::MergeError> {
                let (mut joined, mut grew) = (self.clone(), false);
                #(if let Some(delta) = &delta.#names {
                    grew |= #krate::ReplicatedData::merge_delta(&mut joined.#names, delta)?.grew();
                })*
                *self = joined;
                Ok(grew.into())
            }

            fn join_deltas(into: &mut #delta, other: &#delta) {
                #(#krate::parts::join_deltas::<#types>(&mut into.#names, &other.#names);)*
            }

            fn delta_size(delta: &#delta) -> usize {
                0 #(+ delta.#names.as_ref().map_or(0, <#types as #krate::ReplicatedData>::delta_size))*
            }

            fn cleanup_delta(delta: &mut #delta, markers: &#krate::Markers) -> bool {
                let mut changed = false;
                #(if let Some(delta) = &mut delta.#names {
                    changed |= <#types as #krate::ReplicatedData>::cleanup_delta(delta, &markers.part(#indexes));
                })*
                changed
            }

            fn bind(&mut self, home: #krate::Home) {
                #(#krate::ReplicatedData::bind(&mut self.#names, home);)*
            }

            fn reads_like(&self, before: &Self) -> bool {
                true #(&& #krate::ReplicatedData::reads_like(&self.#names, &before.#names))*
            }

            fn pruning(&self) -> ::core::option::Option<&dyn #krate::RemovedNodePruning> {
                [#(#krate::ReplicatedData::pruning(&self.#names).is_some()),*].contains(&true).then_some(self)
            }

            fn pruning_mut(&mut self) -> ::core::option::Option<&mut dyn #krate::RemovedNodePruning> {
                #krate::ReplicatedData::pruning(self).is_some().then_some(self)
            }

            fn begin_change(&mut self, lineage: #krate::Lineage) {
                #(#krate::ReplicatedData::begin_change(&mut self.#names, lineage);)*
            }

            fn take_change(&mut self, lineage: #krate::Lineage) -> #krate::Change<#delta> {
                let (mut taken, mut any, mut full) = (#delta { #(#names: None,)* }, false, false);
                #(match #krate::ReplicatedData::take_change(&mut self.#names, lineage) {
                    #krate::Change::None => {}
                    #krate::Change::Delta(delta) => (taken.#names, any) = (Some(delta), true),
                    #krate::Change::FullOnly => full = true,
                })*
                match (full, any) {
                    (true, _) => #krate::Change::FullOnly,
                    (false, true) => #krate::Change::Delta(taken),
                    (false, false) => #krate::Change::None,
                }
            }

            fn digest(&self) -> #krate::Digest {
                #krate::parts::digest(&[#(#krate::ReplicatedData::digest(&self.#names)),*])
            }

            fn encode(&self, out: &mut #krate::Encoder) {
                out.u8(#krate::FORMAT);
                #(#krate::ReplicatedData::encode(&self.#names, out);)*
            }

            fn decode(inp: &mut #krate::Decoder<'_>) -> ::core::result::Result<Self, #krate::DecodeError> {
                inp.format()?;
                Ok(Self { #(#names: #krate::ReplicatedData::decode(inp)?,)* })
            }

            fn encode_delta(delta: &#delta, out: &mut #krate::Encoder) {
                out.u8(#krate::FORMAT);
                #(#krate::parts::encode_delta::<#types>(&delta.#names, out);)*
            }

            fn decode_delta(inp: &mut #krate::Decoder<'_>) -> ::core::result::Result<#delta, #krate::DecodeError> {
                inp.format()?;
                Ok(#delta { #(#names: #krate::parts::decode_delta::<#types>(inp)?,)* })
            }

            fn size_hint(&self) -> usize {
                1 #(+ #krate::ReplicatedData::size_hint(&self.#names))*
            }
        }
    }
}

fn pruning(name: &Ident, krate: &Tokens, names: &[&Ident], types: &[&Type]) -> Tokens {
    let parts = quote!(&[#(<#types as #krate::ReplicatedData>::pruning(&self.#names)),*]);
    let parts_mut = quote!([#(<#types as #krate::ReplicatedData>::pruning_mut(&mut self.#names)),*]);
    quote! {
        impl #krate::RemovedNodePruning for #name {
            fn modified_by(&self) -> ::std::collections::BTreeSet<#krate::ReplicaId> {
                #krate::parts::modified_by(#parts)
            }

            fn needs_pruning(&self, removed: #krate::ReplicaId, markers: &[#krate::Performed]) -> bool {
                #krate::parts::need_pruning(#parts, removed, markers)
            }

            fn numbers_of(&self, removed: #krate::ReplicaId) -> ::core::option::Option<(u64, u64)> {
                #krate::parts::numbers_of(#parts, removed)
            }

            fn prune(
                &mut self,
                removed: #krate::ReplicaId,
                ranges: &[#krate::Range],
                birth: u64,
                own: &mut #krate::Performed,
            ) {
                #krate::parts::prune(#parts_mut, removed, ranges, birth, own);
            }

            fn cleanup(&mut self, markers: &#krate::Markers) -> bool {
                #krate::parts::cleanup(#parts_mut, markers)
            }
        }
    }
}
