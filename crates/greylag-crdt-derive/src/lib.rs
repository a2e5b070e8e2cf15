//! Derive macros of `greylag-crdt`. `greylag-crdt` re-exports them; use them from there.
//!
//! The generated code names `greylag-crdt`, so a program that derives depends on `greylag-crdt`, or on `greylag` and
//! sets `#[crdt(crate = "greylag::crdt")]`.

mod attributes;
mod composed;
mod element;

use proc_macro::TokenStream;
use syn::{DeriveInput, parse_macro_input};

/// Makes a struct of replicated types a replicated type: joined field by field; its delta has an optional delta per
/// field.
///
/// The attribute `#[crdt(tag = "shop.cart/1")]` gives the stable tag. The delta is a struct of its own, `CartDelta` for
/// `Cart`. Causal fields keep contexts of their own. The order of fields is part of the format: append new fields, and
/// give the tag a new version. Source: ddata A2.
#[proc_macro_derive(ReplicatedData, attributes(crdt))]
pub fn derive_replicated_data(input: TokenStream) -> TokenStream {
    let input = parse_macro_input!(input as DeriveInput);
    composed::derive(&input).unwrap_or_else(syn::Error::into_compile_error).into()
}

/// Makes a struct or an enum of elements an element of sets, a key of maps or the value of registers.
///
/// The attribute `#[crdt(tag = "shop.item/1")]` gives the stable tag. The order of fields and of variants is part of
/// the format, and should be that of the derived `Ord`. Source: ddata Y1.
#[proc_macro_derive(Element, attributes(crdt))]
pub fn derive_element(input: TokenStream) -> TokenStream {
    let input = parse_macro_input!(input as DeriveInput);
    element::derive(&input).unwrap_or_else(syn::Error::into_compile_error).into()
}
