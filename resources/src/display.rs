//! Printing in the Mesos manner: lists with `, ` between; and the common traits of types that are a text or print like one.

use std::fmt;

/// Traits of a type that is a `str` behind a pointer.
macro_rules! text {
    ($name:ident) => {
        impl std::borrow::Borrow<str> for $name {
            fn borrow(&self) -> &str {
                &self.0
            }
        }

        impl AsRef<str> for $name {
            fn as_ref(&self) -> &str {
                &self.0
            }
        }

        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str(&self.0)
            }
        }

        impl std::fmt::Debug for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                std::fmt::Debug::fmt(&*self.0, f)
            }
        }
    };
    ($name:ident, compared) => {
        crate::display::text!($name);

        impl PartialEq<str> for $name {
            fn eq(&self, that: &str) -> bool {
                &*self.0 == that
            }
        }

        impl PartialEq<&str> for $name {
            fn eq(&self, that: &&str) -> bool {
                &*self.0 == *that
            }
        }
    };
}

/// Implements `Debug` by the type's `Display`.
macro_rules! debug_as_display {
    ($($name:ty),+) => {$(
        impl std::fmt::Debug for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                std::fmt::Display::fmt(self, f)
            }
        }
    )+};
}

pub(crate) use {debug_as_display, text};

pub(crate) fn list<T: fmt::Display>(
    f: &mut fmt::Formatter<'_>,
    open: &str,
    items: impl IntoIterator<Item = T>,
    close: &str,
) -> fmt::Result {
    f.write_str(open)?;
    separated(f, items, ", ")?;
    f.write_str(close)
}

pub(crate) fn separated<T: fmt::Display>(
    f: &mut fmt::Formatter<'_>,
    items: impl IntoIterator<Item = T>,
    separator: &str,
) -> fmt::Result {
    for (index, item) in items.into_iter().enumerate() {
        if index > 0 {
            f.write_str(separator)?;
        }
        write!(f, "{item}")?;
    }
    Ok(())
}
