//! A reader that charges every byte to the fetch's budget, including skipped bytes.

use std::cell::RefCell;
use std::io::{self, Read};

use super::Budget;

#[derive(Debug)]
pub(super) struct Paid<'cell, 'budget, R> {
    reader: R,
    budget: &'cell RefCell<&'budget mut Budget>,
}

impl<'cell, 'budget, R> Paid<'cell, 'budget, R> {
    pub(super) fn new(reader: R, budget: &'cell RefCell<&'budget mut Budget>) -> Self {
        Self { reader, budget }
    }
}

impl<R: Read> Read for Paid<'_, '_, R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = self.reader.read(buffer)?;
        let paid = self.budget.borrow_mut().spend(count);
        paid.map_err(io::Error::other)?;
        Ok(count)
    }
}
