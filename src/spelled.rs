//! Enums whose values the database spells as text.

/// Defines an enum whose values are text columns in the database and strings in JSON.
macro_rules! spelled {
    (
        $(#[$about:meta])*
        $name:ident, $what:literal {
            $($(#[$meaning:meta])* $variant:ident = $text:literal,)+
        }
    ) => {
        $(#[$about])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub enum $name {
            $($(#[$meaning])* $variant,)+
        }

        impl $name {
            /// All of them.
            pub const ALL: [$name; [$($text),+].len()] = [$($name::$variant),+];

            /// As the database spells it.
            pub const fn as_str(self) -> &'static str {
                match self {
                    $($name::$variant => $text,)+
                }
            }
        }

        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.pad(self.as_str())
            }
        }

        impl std::str::FromStr for $name {
            type Err = $crate::Error;

            fn from_str(text: &str) -> $crate::Result<$name> {
                $name::ALL.into_iter().find(|state| state.as_str() == text).ok_or_else(|| {
                    $crate::Error::new(format!(concat!("{:?} is not ", $what), text))
                        .with_hint(concat!("Use one of: ", $($text, ", ",)+).trim_end_matches(", "))
                })
            }
        }

        impl<'a> postgres_types::FromSql<'a> for $name {
            fn from_sql(
                column: &postgres_types::Type,
                raw: &'a [u8],
            ) -> Result<Self, Box<dyn std::error::Error + Sync + Send>> {
                Ok(<&str as postgres_types::FromSql>::from_sql(column, raw)?.parse()?)
            }

            fn accepts(column: &postgres_types::Type) -> bool {
                <&str as postgres_types::FromSql>::accepts(column)
            }
        }

        impl postgres_types::ToSql for $name {
            fn to_sql(
                &self,
                column: &postgres_types::Type,
                out: &mut postgres_types::private::BytesMut,
            ) -> Result<postgres_types::IsNull, Box<dyn std::error::Error + Sync + Send>> {
                postgres_types::ToSql::to_sql(&self.as_str(), column, out)
            }

            fn accepts(column: &postgres_types::Type) -> bool {
                <&str as postgres_types::ToSql>::accepts(column)
            }

            postgres_types::to_sql_checked!();
        }

        impl serde::Serialize for $name {
            fn serialize<S: serde::Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
                to.serialize_str(self.as_str())
            }
        }

        impl<'de> serde::Deserialize<'de> for $name {
            fn deserialize<D: serde::Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
                let text: std::borrow::Cow<'_, str> = serde::Deserialize::deserialize(from)?;
                text.parse().map_err(serde::de::Error::custom)
            }
        }
    };
}

pub(crate) use spelled;
