//! Random operations on the image, compared with a model filesystem.

#[cfg(test)]
mod run;
