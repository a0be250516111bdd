"""The committed notebooks: their rules, their links, how they are executed again."""
