"""The Keras models of the zoo, apart from their configs: importing them loads TensorFlow."""
