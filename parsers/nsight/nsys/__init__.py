"""The databases and table folders of Nsight Systems."""
