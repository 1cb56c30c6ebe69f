//! What the encodings of commands, queries and replies share: little-endian integers, byte strings
//! behind a `u32` length, and the ways in which bytes can be wrong.
#![deny(clippy::indexing_slicing, clippy::arithmetic_side_effects)]

use crate::command::{KEY_BYTES_MAX, VALUE_BYTES_MAX};

/// What is wrong with bytes, or with what was to become bytes. Its number stands in replies.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Fault {
    /// Written by another version.
    #[error("the encoding has a version this program does not know")]
    Version,
    /// A form, kind or flag byte without meaning.
    #[error("a form byte has no meaning")]
    Form,
    /// They end in the middle.
    #[error("the bytes end in the middle")]
    Short,
    /// Bytes follow the end.
    #[error("bytes follow the end")]
    Trailing,
    /// A key above 64 KiB.
    #[error("a key is longer than 65,536 bytes")]
    KeyTooLong,
    /// A value above 8 MiB.
    #[error("a value is longer than 8 MiB")]
    ValueTooLong,
    /// A list of more than 1,024 compares, writes or reads.
    #[error("a batch has more than 1,024 compares, writes or reads")]
    TooMany,
}

impl Fault {
    const ALL: [Self; 7] = [
        Self::Version,
        Self::Form,
        Self::Short,
        Self::Trailing,
        Self::KeyTooLong,
        Self::ValueTooLong,
        Self::TooMany,
    ];

    /// Its number in replies.
    pub const fn code(self) -> u8 {
        self as u8
    }

    /// The fault with this number.
    ///
    /// # Errors
    /// [`Self::Form`] when there is none.
    pub fn from_code(code: u8) -> Result<Self, Self> {
        Self::ALL.get(usize::from(code)).copied().ok_or(Self::Form)
    }
}

/// What is left to read.
#[derive(Debug)]
pub struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    /// A reader at the front of `bytes`.
    pub const fn new(bytes: &'a [u8]) -> Self {
        Self(bytes)
    }

    /// The next `len` bytes.
    ///
    /// # Errors
    /// [`Fault`].
    pub fn take(&mut self, len: usize) -> Result<&'a [u8], Fault> {
        let (taken, rest) = self.0.split_at_checked(len).ok_or(Fault::Short)?;
        self.0 = rest;
        Ok(taken)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], Fault> {
        self.take(N)?.try_into().map_err(|_| Fault::Short)
    }

    /// The next byte.
    ///
    /// # Errors
    /// [`Fault`].
    pub fn u8(&mut self) -> Result<u8, Fault> {
        self.array().map(u8::from_le_bytes)
    }

    /// A number.
    ///
    /// # Errors
    /// [`Fault`].
    pub fn u16(&mut self) -> Result<u16, Fault> {
        self.array().map(u16::from_le_bytes)
    }

    /// A number.
    ///
    /// # Errors
    /// [`Fault`].
    pub fn u32(&mut self) -> Result<u32, Fault> {
        self.array().map(u32::from_le_bytes)
    }

    /// A number.
    ///
    /// # Errors
    /// [`Fault`].
    pub fn u64(&mut self) -> Result<u64, Fault> {
        self.array().map(u64::from_le_bytes)
    }

    /// A number.
    ///
    /// # Errors
    /// [`Fault`].
    pub fn i64(&mut self) -> Result<i64, Fault> {
        self.array().map(i64::from_le_bytes)
    }

    /// A byte that is 0 or 1.
    ///
    /// # Errors
    /// [`Fault`].
    pub fn flag(&mut self) -> Result<bool, Fault> {
        match self.u8()? {
            0 => Ok(false),
            1 => Ok(true),
            _ => Err(Fault::Form),
        }
    }

    fn bytes(&mut self, len_max: usize, too_long: Fault) -> Result<&'a [u8], Fault> {
        let len = usize::try_from(self.u32()?).map_err(|_| too_long)?;
        if len_max < len { Err(too_long) } else { self.take(len) }
    }

    /// A key.
    ///
    /// # Errors
    /// [`Fault`].
    pub fn key(&mut self) -> Result<&'a [u8], Fault> {
        self.bytes(KEY_BYTES_MAX, Fault::KeyTooLong)
    }

    /// A value.
    ///
    /// # Errors
    /// [`Fault`].
    pub fn value(&mut self) -> Result<&'a [u8], Fault> {
        self.bytes(VALUE_BYTES_MAX, Fault::ValueTooLong)
    }

    /// All that is left, still to be read.
    #[must_use]
    pub const fn rest(&self) -> &'a [u8] {
        self.0
    }

    /// All that is left; nothing is, after that.
    pub fn take_rest(&mut self) -> &'a [u8] {
        std::mem::take(&mut self.0)
    }

    /// That nothing is left.
    ///
    /// # Errors
    /// [`Fault::Trailing`] when something is left.
    pub const fn end(&self) -> Result<(), Fault> {
        if self.0.is_empty() { Ok(()) } else { Err(Fault::Trailing) }
    }
}

/// Appends a number.
pub fn put_u16(out: &mut Vec<u8>, value: u16) {
    out.extend_from_slice(&value.to_le_bytes());
}

/// Appends a number.
pub fn put_u32(out: &mut Vec<u8>, value: u32) {
    out.extend_from_slice(&value.to_le_bytes());
}

/// Appends a number.
pub fn put_u64(out: &mut Vec<u8>, value: u64) {
    out.extend_from_slice(&value.to_le_bytes());
}

/// Appends a number.
pub fn put_i64(out: &mut Vec<u8>, value: i64) {
    out.extend_from_slice(&value.to_le_bytes());
}

/// Appends a byte string; the caller has checked its length against a limit.
///
/// # Panics
/// When it is longer than 4 GiB.
pub fn put_bytes(out: &mut Vec<u8>, bytes: &[u8]) {
    put_u32(out, u32::try_from(bytes.len()).expect("keys and values have limits below 4 GiB"));
    out.extend_from_slice(bytes);
}
