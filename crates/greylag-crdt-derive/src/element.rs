//! Derives `Element`. Fields are written one after the other; an enum begins with the index of its variant.

use proc_macro2::TokenStream as Tokens;
use quote::{format_ident, quote};
use syn::{Data, DeriveInput, Fields, parse_quote};

use crate::attributes::Attributes;

pub(crate) fn derive(input: &DeriveInput) -> syn::Result<Tokens> {
    let attributes = Attributes::of(input)?;
    let (krate, tag, name) = (&attributes.krate, attributes.type_tag(input), &input.ident);
    let mut generics = input.generics.clone();
    for parameter in generics.type_params_mut() {
        parameter.bounds.push(parse_quote!(#krate::Element));
    }
    let (params, arguments, bounds) = generics.split_for_impl();
    let (encode, decode) = match &input.data {
        // Write a byte even without fields: the bytes of an element are never empty.
        Data::Struct(data) if data.fields.is_empty() => {
            let (_, _, decode) = variant(krate, &quote!(Self), &data.fields);
            let other = quote!(_ => Err(#krate::DecodeError::Invalid("an element without fields is 0")));
            (quote!(out.u8(0);), quote!(match inp.u8()? { 0 => Ok(#decode), #other }))
        }
        Data::Struct(data) => {
            let (pattern, encode, decode) = variant(krate, &quote!(Self), &data.fields);
            (quote!(let #pattern = self; #encode), quote!(Ok(#decode)))
        }
        Data::Enum(data) => {
            let (mut encodes, mut decodes) = (Vec::new(), Vec::new());
            for (index, of) in (0_u64..).zip(&data.variants) {
                let ident = &of.ident;
                let (pattern, encode, decode) = variant(krate, &quote!(Self::#ident), &of.fields);
                encodes.push(quote!(#pattern => { out.u64(#index); #encode }));
                decodes.push(quote!(#index => Ok(#decode)));
            }
            let unknown = quote!(_ => Err(#krate::DecodeError::Invalid("an unknown variant")));
            (quote!(match self { #(#encodes)* }), quote!(match inp.u64()? { #(#decodes,)* #unknown }))
        }
        Data::Union(_) => return Err(syn::Error::new_spanned(name, "a union has no canonical bytes")),
    };
    Ok(quote! {
        impl #params #krate::Element for #name #arguments #bounds {
            const TAG: #krate::TypeTag = #tag;

            fn encode(&self, out: &mut #krate::Encoder) {
                #encode
            }

            fn decode(inp: &mut #krate::Decoder<'_>) -> ::core::result::Result<Self, #krate::DecodeError> {
                #decode
            }
        }
    })
}

/// Returns the pattern that takes a variant apart, the code that writes its fields, and the code that reads them.
fn variant(krate: &Tokens, path: &Tokens, fields: &Fields) -> (Tokens, Tokens, Tokens) {
    let bound: Vec<_> = (0..fields.len()).map(|index| format_ident!("field_{index}")).collect();
    let encode = quote!(#(#krate::Element::encode(#bound, out);)*);
    let read = quote!(#krate::Element::decode(inp)?);
    let (pattern, decode) = match fields {
        Fields::Named(named) => {
            let names: Vec<_> = named.named.iter().map(|field| &field.ident).collect();
            (quote!(#path { #(#names: #bound),* }), quote!(#path { #(#names: #read),* }))
        }
        Fields::Unnamed(_) => {
            let reads = bound.iter().map(|_| &read);
            (quote!(#path(#(#bound),*)), quote!(#path(#(#reads),*)))
        }
        Fields::Unit => (quote!(#path), quote!(#path)),
    };
    (pattern, encode, decode)
}
