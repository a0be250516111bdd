def torch_updates(*a): return None
def compare_updates(*a): return []
