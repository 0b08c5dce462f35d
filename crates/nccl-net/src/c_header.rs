//! The C header of NCCL's plugin interface, generated from the definitions of `abi`.
//!
//! `tests/driver/net.h` is a copy of it, and a test compares the two. `NCCL_HEADER_UPDATE=1 cargo test -p nccl-net --lib`
//! writes the copy anew.

use std::ffi::{c_char, c_int, c_void};
use std::fmt::Write;

use crate::abi::*;

/// A structure of the interface.
pub(crate) trait CStruct {
    /// Its name in NCCL's headers.
    const C_NAME: &'static str;

    /// Its fields in their order.
    fn fields() -> Vec<CField>;
}

/// A field of a structure.
pub(crate) struct CField {
    pub(crate) name: String,
    /// Type and name, as C declares them.
    pub(crate) declaration: String,
    pub(crate) offset_bytes: usize,
}

/// A Rust type that C has, too.
pub(crate) trait CType {
    /// Returns the declaration of `declarator`: a name, perhaps with `*` before it or `[n]` after it.
    fn declare(declarator: &str) -> String;
}

macro_rules! named_types {
    ($($type:ty: $c_name:literal,)*) => {
        $(impl CType for $type {
            fn declare(declarator: &str) -> String {
                format!("{} {declarator}", $c_name)
            }
        })*
    };
}

named_types! {
    c_char: "char",
    c_int: "int",
    c_void: "void",
    f32: "float",
    i16: "int16_t",
    u64: "uint64_t",
    usize: "size_t",
    Logger: "ncclDebugLogger_t",
}

impl<T: CStruct> CType for T {
    fn declare(declarator: &str) -> String {
        format!("{} {declarator}", T::C_NAME)
    }
}

impl<T: CType> CType for *mut T {
    fn declare(declarator: &str) -> String {
        T::declare(&format!("*{declarator}"))
    }
}

impl<T: CType> CType for *const T {
    fn declare(declarator: &str) -> String {
        format!("const {}", T::declare(&format!("*{declarator}")))
    }
}

impl<T: CType, const N: usize> CType for [T; N] {
    fn declare(declarator: &str) -> String {
        T::declare(&format!("{declarator}[{N}]"))
    }
}

/// Returns a name as NCCL writes it: `reg_mr` is `regMr`.
pub(crate) fn camel_case(name: &str) -> String {
    let mut words = name.split('_');
    let first = words.next().unwrap_or_default().to_owned();
    words.fold(first, |mut text, word| {
        let mut letters = word.chars();
        text.extend(letters.next().map(|letter| letter.to_ascii_uppercase()));
        text.push_str(letters.as_str());
        text
    })
}

/// Returns the declaration of a field or argument by its name in Rust.
pub(crate) fn declare<T: CType>(name: &str) -> String {
    T::declare(&camel_case(name))
}

/// Returns the declaration of a function pointer with these arguments.
pub(crate) fn declare_function(name: &str, arguments: &[String]) -> String {
    let (name, arguments) = (camel_case(name), arguments.join(", "));
    format!("ncclResult_t (*{name})({arguments})")
}

/// Writes a structure, and assertions of its layout in Rust.
fn write_struct<T: CStruct>(text: &mut String) -> std::fmt::Result {
    let name = T::C_NAME;
    writeln!(text, "\ntypedef struct {{")?;
    for field in T::fields() {
        writeln!(text, "  {};", field.declaration)?;
    }
    writeln!(text, "}} {name};")?;
    for CField {
        name: field,
        offset_bytes,
        ..
    } in T::fields()
    {
        let check = format!("offsetof({name}, {field}) == {offset_bytes}");
        writeln!(text, "_Static_assert({check}, \"{field}\");")?;
    }
    let bytes = size_of::<T>();
    writeln!(text, "_Static_assert(sizeof({name}) == {bytes}, \"size\");")
}

/// Returns the text of the header.
fn header() -> Result<String, std::fmt::Error> {
    let mut text = String::from(
        "/* NCCL's network plugin interface, versions 6 to 12.\n \
         * Generated from src/abi.rs: NCCL_HEADER_UPDATE=1 cargo test -p nccl-net --lib */\n\
         #ifndef NCCL_NET_H\n#define NCCL_NET_H\n#include <stddef.h>\n#include <stdint.h>\n\n",
    );
    for (name, value) in [
        ("NCCL_NET_HANDLE_MAXSIZE", HANDLE_BYTES.to_string()),
        ("NCCL_PTR_HOST", PTR_HOST.to_string()),
        ("NCCL_LOG_WARN", LOG_WARN.to_string()),
        ("NCCL_LOG_INFO", LOG_INFO.to_string()),
    ] {
        writeln!(text, "#define {name} {value}")?;
    }
    writeln!(text, "\ntypedef enum {{")?;
    for (name, value) in [
        ("ncclSuccess", SUCCESS),
        ("ncclSystemError", SYSTEM_ERROR),
        ("ncclInternalError", INTERNAL_ERROR),
        ("ncclInvalidArgument", INVALID_ARGUMENT),
        ("ncclRemoteError", REMOTE_ERROR),
    ] {
        writeln!(text, "  {name} = {value},")?;
    }
    writeln!(text, "}} ncclResult_t;")?;
    text.push_str(
        "typedef void (*ncclDebugLogger_t)(int level, unsigned long flags, const char *file, int line, const char *format, ...);\n",
    );
    write_struct::<VDeviceV9>(&mut text)?;
    write_struct::<VDeviceV12>(&mut text)?;
    write_struct::<CommConfig>(&mut text)?;
    write_struct::<PropertiesV6>(&mut text)?;
    write_struct::<PropertiesV7>(&mut text)?;
    write_struct::<PropertiesV8>(&mut text)?;
    write_struct::<PropertiesV9>(&mut text)?;
    write_struct::<PropertiesV11>(&mut text)?;
    write_struct::<PropertiesV12>(&mut text)?;
    write_struct::<NetV6>(&mut text)?;
    write_struct::<NetV7>(&mut text)?;
    write_struct::<NetV8>(&mut text)?;
    write_struct::<NetV9>(&mut text)?;
    write_struct::<NetV10>(&mut text)?;
    write_struct::<NetV11>(&mut text)?;
    write_struct::<NetV12>(&mut text)?;
    text.push_str("#endif\n");
    Ok(text)
}

#[test]
fn the_header_of_the_driver_is_generated_from_these_definitions() {
    let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/driver/net.h");
    let generated = header().expect("a string takes any text");
    if std::env::var_os("NCCL_HEADER_UPDATE").is_some() {
        std::fs::write(&path, &generated).expect("the folder can be written");
    }
    let copy = std::fs::read_to_string(&path).expect("it is there");
    assert!(
        copy == generated,
        "{} differs from src/abi.rs: NCCL_HEADER_UPDATE=1 writes it anew",
        path.display()
    );
}
