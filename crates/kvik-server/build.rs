//! Builds again when a file of the page is added or removed, which the compiler does not notice by itself.

fn main() {
    println!("cargo::rerun-if-changed=page");
}
