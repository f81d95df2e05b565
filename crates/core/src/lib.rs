//! A core: interpreter for cold code, just-in-time translation for hot code.
