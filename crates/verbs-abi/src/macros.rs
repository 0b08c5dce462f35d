//! The two macros that declare every type and constant of the ABI.
//!
//! Each macro also lists what it declares in a table of the module ([`crate::layout`]). No declared type, field
//! or constant can therefore be missing from the comparison with the C headers.

/// Declares structs and unions with C layout, in C spelling.
///
/// - `struct a { f: T, }` is `struct a` of the header.
/// - `struct a_b as "typeof(((struct a *)0)->b)" { .. }` has no name in C; the literal is a C
///   expression for its type.
/// - `union a_x as "struct a", anonymous "f" { .. }` is the anonymous union in `struct a` whose
///   first member is `f`.
/// - `f as "g": T` is a field named `g` in C; for an anonymous member, `g` is the first name
///   inside.
macro_rules! c_types {
    ($(
        $(#[$meta:meta])*
        $kind:ident $name:ident $(as $c:literal $(, anonymous $first:literal)?)? {
            $( $(#[$field_meta:meta])* $field:ident $(as $c_field:literal)? : $type:ty, )*
        }
    )*) => {
        $(
            $(#[$meta])*
            #[repr(C)]
            #[allow(missing_docs, reason = "the man pages of rdma-core describe the fields, under these names")]
            pub $kind $name {
                $( $(#[$field_meta])* pub $field: $type, )*
            }

            impl $name {
                /// Returns a value whose bytes are all zero: null pointers, empty slots, zero
                /// numbers.
                #[must_use]
                pub const fn zeroed() -> Self {
                    // SAFETY: `c_types!` declares only integers, raw pointers, `Option`s of
                    // function pointers, pthread objects (zero is their static initializer on
                    // Linux), and arrays, structs and unions of these. All zeroes is a valid value
                    // of each.
                    unsafe { std::mem::zeroed() }
                }
            }
        )*

        /// Layouts of all types of this module.
        pub(crate) const TYPES: &[crate::layout::TypeLayout] = &[$(
            crate::layout::TypeLayout {
                name: stringify!($name),
                c_type: c_types!(@c_type $kind $name $($c)?),
                anonymous: c_types!(@anonymous $($($first)?)?),
                size: size_of::<$name>(),
                align: align_of::<$name>(),
                fields: &[$(
                    crate::layout::FieldLayout {
                        c_name: c_types!(@c_field $field $($c_field)?),
                        anonymous: c_types!(@is_anonymous $($c_field)?),
                        offset: std::mem::offset_of!($name, $field),
                        size: size_of::<$type>(),
                    },
                )*],
            },
        )*];
    };
    (@c_type $kind:ident $name:ident) => { concat!(stringify!($kind), " ", stringify!($name)) };
    (@c_type $kind:ident $name:ident $c:literal) => { $c };
    (@anonymous) => { None };
    (@anonymous $first:literal) => { Some($first) };
    (@is_anonymous) => { false };
    (@is_anonymous $c_field:literal) => { true };
    (@c_field $field:ident) => { stringify!($field) };
    (@c_field $field:ident $c:literal) => { $c };
}

/// Declares constants. `enum name: T { .. }` also declares the type alias `name`; `consts name: T {
/// .. }` declares no alias.
macro_rules! c_consts {
    ($(
        $(#[$meta:meta])*
        $kind:ident $name:ident: $type:ty { $( $const:ident = $value:expr, )* }
    )*) => {
        $(
            c_consts!(@alias $kind $(#[$meta])* $name $type);
            $(
                #[doc = concat!("`", stringify!($const), "` of `", stringify!($name), "`.")]
                pub const $const: $type = $value;
            )*
        )*

        /// Names and values of all constants of this module.
        pub(crate) const CONSTS: &[crate::layout::ConstantValue] = &[$($(
            crate::layout::ConstantValue { name: stringify!($const), value: $const as i128 },
        )*)*];
    };
    (@alias enum $(#[$meta:meta])* $name:ident $type:ty) => {
        $(#[$meta])*
        ///
        /// A plain integer, not a Rust `enum`, since a newer library may return values without a
        /// name here.
        pub type $name = $type;
    };
    (@alias consts $(#[$meta:meta])* $name:ident $type:ty) => {};
}
