//! The header that is checked in says what the functions are.

use std::path::Path;

#[test]
fn the_header_is_what_cbindgen_writes() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let config = cbindgen::Config::from_file(root.join("cbindgen.toml")).expect("the settings can be read");
    let bindings = cbindgen::Builder::new().with_src(root.join("src/lib.rs")).with_config(config);
    let mut written = Vec::new();
    bindings.generate().expect("the sources are what cbindgen reads").write(&mut written);
    let (written, file) = (String::from_utf8(written).expect("C is text"), root.join("include/kvik.h"));
    if std::env::var_os("KVIK_WRITE_HEADER").is_some() {
        std::fs::write(&file, &written).expect("the header can be written");
    }
    let checked_in = std::fs::read_to_string(file).unwrap_or_default();
    assert!(checked_in == written, "KVIK_WRITE_HEADER=1 cargo test -p kvik-c --test header writes it again");
    assert!(written.contains("kvik_open_file("), "it has functions");
}
