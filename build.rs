//! Embeds `sql/` in the order of its file names, with a checksum over all of it.

use std::path::PathBuf;
use std::{env, fs};

fn main() {
    println!("cargo::rerun-if-changed=sql");
    println!("cargo::rerun-if-changed=migrations");
    let mut files: Vec<PathBuf> = fs::read_dir("sql")
        .expect("sql/ exists")
        .map(|entry| entry.expect("sql/ can be read").path())
        .filter(|path| path.extension().is_some_and(|ending| ending == "sql"))
        .collect();
    files.sort();

    let mut checksum = FNV_OFFSET;
    let mut source = String::from(
        "/// `sql/`, in order: file names and texts.\n\
         #[cfg(feature = \"migrate\")]\nstatic SQL: &[(&str, &str)] = &[\n",
    );
    for file in &files {
        let text = fs::read_to_string(file).expect("a file of sql/ can be read");
        let name = file
            .file_name()
            .expect("a file has a name")
            .to_string_lossy()
            .into_owned();
        checksum = fnv1a(checksum, name.as_bytes());
        checksum = fnv1a(checksum, text.as_bytes());
        source.push_str(&format!("    ({name:?}, {text:?}),\n"));
    }
    source.push_str("];\n\n/// Over all of `sql/`.\n");
    source.push_str(&format!("const CHECKSUM: &str = \"{:016x}\";\n", checksum));
    let target = PathBuf::from(env::var("OUT_DIR").expect("cargo sets OUT_DIR")).join("sql.rs");
    fs::write(target, source).expect("OUT_DIR can be written");
}

const FNV_OFFSET: u64 = 0xcbf2_9ce4_8422_2325;

/// A stable hash: the hasher of std may change with the toolchain, and then two builds of the same version would keep
/// re-applying each other's SQL.
fn fnv1a(start: u64, bytes: &[u8]) -> u64 {
    bytes.iter().fold(start, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3)
    })
}
