"""A champion that is kept on data that drift."""
