//! Trees in and out, through a real server: directories, archives, hostile ones, and a kill.
#![allow(missing_docs)]

#[cfg(test)]
mod bounds;
#[cfg(test)]
mod broken;
#[cfg(test)]
mod commands;
#[cfg(test)]
mod directories;
#[cfg(test)]
mod hostile;
#[cfg(test)]
mod interrupted;
#[path = "../support/mod.rs"]
mod support;
#[cfg(test)]
mod tar;
#[cfg(test)]
mod tree;
