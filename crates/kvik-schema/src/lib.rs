//! The derive `JsonSchema` where no schema is wanted.
//!
//! The document of all routes, `openapi.json`, is checked in, and a test holds it to the types of bodies and answers. Only
//! that test derives their schemas; a binary has none of their code, and its build does not compile it.

use proc_macro::TokenStream;

/// Accepts the attributes that schemars reads and writes nothing.
#[proc_macro_derive(JsonSchema, attributes(schemars, serde))]
pub fn json_schema(_: TokenStream) -> TokenStream {
    TokenStream::new()
}
