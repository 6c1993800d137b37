#![allow(unused_imports)]
