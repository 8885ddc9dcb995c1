"""What crosses the wall between server and sites: tasks, updates, questions and answers, as bounded bytes."""
